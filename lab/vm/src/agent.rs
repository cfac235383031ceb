//! Scripts for the guest, over a virtio port: the other side is `guest/agent.sh`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use xtask::Failure;

use crate::patience;

/// The host's end of the port. One script at a time.
pub(crate) struct Agent {
    stream: BufReader<UnixStream>,
    scripts: u64,
}

/// How a script ended.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The exit code of the script.
    pub(crate) code: i32,
    /// Both of its outputs.
    pub(crate) output: Vec<u8>,
}

impl Answer {
    /// The outputs, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into()
    }
}

impl Agent {
    /// Connects to QEMU; the guest need not run yet.
    pub(crate) fn connect(socket: &Path) -> Result<Self, Failure> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience::SILENCE_MAX))?;
        Ok(Self { stream: BufReader::new(stream), scripts: 0 })
    }

    /// Waits until a boot has come so far that the guest takes scripts.
    pub(crate) fn await_boot(&mut self) -> Result<(), Failure> {
        while self.line()?.first().map(String::as_str) != Some("ready") {}
        Ok(())
    }

    /// Runs a script of bash to its end.
    pub(crate) fn run(&mut self, script: &str) -> Result<Answer, Failure> {
        let number = self.send(script)?.to_string();
        loop {
            let words = self.line()?;
            match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["done", of, code, length] if *of == number => {
                    let (code, mut output) = (code.parse()?, vec![0; length.parse()?]);
                    self.stream.read_exact(&mut output)?;
                    return Ok(Answer { code, output });
                }
                ["ready", _] => return Err("the guest started anew in the middle".into()),
                _ => {}
            }
        }
    }

    /// Hands a script over, and waits for nothing: the guest may be gone before the script ends.
    pub(crate) fn send(&mut self, script: &str) -> Result<u64, Failure> {
        self.scripts += 1;
        let number = self.scripts;
        write!(self.stream.get_mut(), "{number} {}\n{script}", script.len())?;
        Ok(number)
    }

    fn line(&mut self) -> Result<Vec<String>, Failure> {
        let mut line = Vec::new();
        let silent = |error| format!("the guest says nothing: {error}");
        if self.stream.read_until(b'\n', &mut line).map_err(silent)? == 0 {
            return Err("QEMU has ended".into());
        }
        Ok(String::from_utf8_lossy(&line).split_whitespace().map(str::to_owned).collect())
    }
}
