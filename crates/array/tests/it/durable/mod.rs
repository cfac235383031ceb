//! Arrays with durable state: making, assembling, stopping, and power cuts at every step of that.

mod assemble;
mod crash;
mod drive;
mod grow;
mod half_written;
mod hung;
mod hung_start;
mod integrity;
mod journal_device;
mod kill;
mod labels;
mod losses;
mod rebuild;
mod refusals;
mod reshape;
mod resync;
mod ring_sectors;
mod service;
mod space;
mod stop;
mod world;
