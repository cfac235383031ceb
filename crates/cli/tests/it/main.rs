//! The tests of the real program. One program, so that it is linked once; they wait most of their time, and many
//! run at once (scripts/run-tests.sh).

mod array_grow;
mod array_integrity;
mod array_journal;
mod array_merge;
mod arrays;
mod cached_volumes;
mod clock;
mod command_line;
mod commands_wait_alone;
mod crash;
mod device_labels;
mod drive_identity;
mod export_access;
mod failing_drives;
mod file_systems;
mod full_host;
mod full_ssd;
mod hung_drives;
mod import;
mod lab;
mod lab_demo;
mod lab_report;
mod lab_trace;
mod late_drives;
mod moved_members;
mod own_volume;
mod packaging;
mod plain_volumes;
mod pulled_drives;
mod spare_pools;
mod stops;
mod support;
mod unaligned;
mod verify;
