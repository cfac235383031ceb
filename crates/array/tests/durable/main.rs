//! Arrays with durable state: making, assembling, stopping, and power cuts at every step of that.

mod assemble;
mod crash;
mod drive;
mod grow;
mod rebuild;
mod service;
mod world;
