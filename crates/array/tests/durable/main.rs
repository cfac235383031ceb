//! Arrays with durable state: making, assembling, stopping, and power cuts at every step of that.

mod assemble;
mod crash;
mod drive;
mod journal_device;
mod rebuild;
mod service;
mod world;
