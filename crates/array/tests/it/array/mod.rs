//! The engine: against an oracle, its device I/Os counted, and with members that fail.

mod failures;
mod health;
mod io_counts;
mod journal;
mod merge;
mod oracle;
mod rebuild;
mod scrub;
mod spare_label;
mod world;
