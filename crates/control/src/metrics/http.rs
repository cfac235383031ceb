//! A server of the text of metrics and of a page that is only looked at: GET alone, a few clients at a time, each with
//! little time and few bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::metrics::address::MetricsAddress;
use crate::service::state::live::now;

/// How long a client may take to say what it wants, and to take the answer.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// What is still heard of a client that was refused, in bytes.
const REST_BYTES_MAX: usize = 1 << 20;
/// Clients at a time; further ones are told to come again.
const CLIENTS_MAX: usize = 8;
/// How long a listener that cannot be had, or that fails, rests.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// An answer: the status line after `HTTP/1.1 `, the type of the content and the content.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Answer {
    /// Content.
    pub(crate) fn ok(kind: &'static str, body: String) -> Self {
        Self { status: "200 OK", kind, body }
    }

    /// A refusal in a line.
    pub(crate) fn refused(status: &'static str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{status}\n") }
    }
}

trait Stream: Read + Write {
    fn set_time(&self, left: Duration) -> io::Result<()>;

    /// Says that nothing more is sent.
    fn end(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_time(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn set_time(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Serves for as long as the process lives. `note` hears why that is not possible, and that it is again.
pub(crate) fn serve(
    address: &MetricsAddress,
    note: impl Fn(Option<String>),
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) {
    let (answer, clients) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let mut is_told = false;
    loop {
        let Err(error) = listen(address, &answer, &clients, || {
            note(None);
            if is_told {
                tracing::info!("metrics are answered at {address}");
            }
        });
        note(Some(format!("metrics cannot be answered at {address}: {error}")));
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!("metrics cannot be answered at {address}: {error}; it is tried again");
        }
        thread::park_timeout(LISTEN_AGAIN);
    }
}

fn listen(
    address: &MetricsAddress,
    answer: &Arc<impl Fn(&str) -> Answer + Send + Sync + 'static>,
    clients: &Arc<AtomicUsize>,
    mut listens: impl FnMut(),
) -> io::Result<std::convert::Infallible> {
    match address {
        MetricsAddress::Loopback(address) => {
            let listener = TcpListener::bind(address)?;
            listens();
            loop {
                let (stream, _) = listener.accept()?;
                give(stream, answer, clients);
            }
        }
        MetricsAddress::Socket(path) => {
            remove_stale(path);
            let listener = UnixListener::bind(path)?;
            listens();
            loop {
                let (stream, _) = listener.accept()?;
                give(stream, answer, clients);
            }
        }
    }
}

/// A socket that nobody listens at any more is of a daemon that was killed.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

fn give<S: Stream + Send + 'static>(
    mut stream: S,
    answer: &Arc<impl Fn(&str) -> Answer + Send + Sync + 'static>,
    clients: &Arc<AtomicUsize>,
) {
    let (answer, clients) = (Arc::clone(answer), Arc::clone(clients));
    if clients.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
        clients.fetch_sub(1, Ordering::AcqRel);
        let _ = send(
            &mut stream,
            &Answer::refused("503 Service Unavailable"),
            false,
            now() + CLIENT_MAX,
        );
        return;
    }
    let own = Arc::clone(&clients);
    let work = move || {
        // A client that goes away is no trouble of ours.
        let _ = talk(stream, &*answer);
        own.fetch_sub(1, Ordering::AcqRel);
    };
    if thread::Builder::new().name("metrics client".into()).spawn(work).is_err() {
        clients.fetch_sub(1, Ordering::AcqRel);
    }
}

fn talk(mut stream: impl Stream, answer: &impl Fn(&str) -> Answer) -> io::Result<()> {
    let until = now() + CLIENT_MAX;
    let mut head = Vec::new();
    let asked = loop {
        match parse(&head) {
            Parsed::More if head.len() < HEAD_BYTES_MAX => {}
            Parsed::More => break Err("431 Request Header Fields Too Large"),
            Parsed::Wrong(status) => break Err(status),
            Parsed::Get { path, with_body } => break Ok((path, with_body)),
        }
        let mut part = [0; 1024];
        stream.set_time(left(until)?)?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&part[..count]),
        }
    };
    match asked {
        Ok((path, with_body)) => send(&mut stream, &answer(&path), with_body, until + CLIENT_MAX),
        Err(status) => {
            send(&mut stream, &Answer::refused(status), true, until)?;
            hear_the_rest(&mut stream, until)
        }
    }
}

/// A connection that is closed with something unread is reset, and the client may lose the answer.
fn hear_the_rest(stream: &mut impl Stream, until: Instant) -> io::Result<()> {
    stream.end()?;
    let mut heard = 0;
    let mut part = [0; 1024];
    while heard < REST_BYTES_MAX {
        stream.set_time(left(until)?)?;
        match stream.read(&mut part)? {
            0 => break,
            count => heard += count,
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

enum Parsed {
    More,
    Wrong(&'static str),
    Get { path: String, with_body: bool },
}

fn parse(head: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Parsed::More,
        Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Wrong("431 Request Header Fields Too Large");
        }
        Err(_) => return Parsed::Wrong("400 Bad Request"),
    }
    let hosts = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("host"));
    // A page of somebody else whose name leads here is refused: its name is none of this machine.
    if !hosts.map(|it| it.value).all(is_here) {
        return Parsed::Wrong("421 Misdirected Request");
    }
    let path = request.path.unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
    match request.method {
        Some("GET") => Parsed::Get { path, with_body: true },
        Some("HEAD") => Parsed::Get { path, with_body: false },
        _ => Parsed::Wrong("405 Method Not Allowed"),
    }
}

/// Whether the name in a request is that of this machine for itself, or an address.
fn is_here(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn send(
    stream: &mut impl Stream,
    answer: &Answer,
    with_body: bool,
    until: Instant,
) -> io::Result<()> {
    let Answer { status, kind, body } = answer;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nContent-Security-Policy: default-src \
         'self' 'unsafe-inline'; connect-src 'self'\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body: &[u8] = if with_body { body.as_bytes() } else { &[] };
    for mut rest in [head.as_bytes(), body] {
        while !rest.is_empty() {
            stream.set_time(left(until)?)?;
            match stream.write(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => rest = &rest[count..],
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(head: &str) -> String {
        match parse(head.as_bytes()) {
            Parsed::More => "more".to_owned(),
            Parsed::Wrong(status) => status.to_owned(),
            Parsed::Get { path, with_body } => format!("{path} {with_body}"),
        }
    }

    #[test]
    fn a_request_is_a_get_for_this_machine() {
        assert_eq!(
            asked("GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9810\r\n\r\n"),
            "/metrics true"
        );
        assert_eq!(asked("HEAD / HTTP/1.1\r\nHost: [::1]:9810\r\n\r\n"), "/ false");
        assert_eq!(asked("GET / HTTP/1.0\r\n\r\n"), "/ true");
        assert_eq!(asked("GET / HTTP/1.1\r\nHost: localhost"), "more");
        assert_eq!(
            asked("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
            "421 Misdirected Request"
        );
        assert_eq!(asked("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(asked("\u{1}\u{2}\r\n\r\n"), "400 Bad Request");
        let many: String = (0..100).map(|it| format!("h{it}: x\r\n")).collect();
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(asked(&many), "431 Request Header Fields Too Large");
    }
}
