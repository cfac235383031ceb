//! Drives a session over a whole input as a server would, without a socket.

use voltier_export::nbd::{Command, Event, Request, Session};

/// The accepted requests; the data of writes are dropped. No input may make this panic, loop, or
/// grow `out` beyond a bound that follows from the input's length.
pub(crate) fn consume(session: &mut Session, mut input: &[u8], out: &mut Vec<u8>) -> Vec<Request> {
    let mut accepted = Vec::new();
    loop {
        let (used, event) = session.advance(input, out);
        input = &input[used..];
        match event {
            Event::Used => assert!(used > 0, "progress without input used"),
            Event::Need(bytes) => {
                assert!(bytes > input.len() && bytes <= Session::INPUT_BYTES_MAX);
                return accepted;
            }
            Event::Close(_) => return accepted,
            Event::Request(request) => {
                accepted.push(request);
                if request.command == Command::Write {
                    input = &input[input.len().min(request.length as usize)..];
                }
            }
        }
    }
}
