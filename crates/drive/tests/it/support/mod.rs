//! What several tests of drives use.

pub(crate) mod fake_server;
