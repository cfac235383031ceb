//! A hostile NBD client against the real server, its volume and its executor, on a wire without a
//! socket. Then comes a good client, whom the server must serve as if nothing had happened.

mod exported;
mod good;
mod negotiation;
mod protocol;
mod requests;
mod serve;
mod wire;

pub(crate) use negotiation::run as negotiation;
pub(crate) use requests::run as requests;
