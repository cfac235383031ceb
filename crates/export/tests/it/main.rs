//! The integration tests of the exports. One program: what is generic over devices
//! is compiled once for all of them.

mod fuse_file;
mod fuse_session;
mod nbd_budget;
mod nbd_server;
mod nbd_session;
mod support;
