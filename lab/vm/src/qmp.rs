//! QEMU's own protocol, QMP: the hands on the plugs of the machine.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use xtask::Failure;

use crate::patience;

/// A connection to QEMU that takes commands.
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Events that came between a command and its answer.
    events: Vec<Value>,
}

impl Qmp {
    /// Begins with a connection that QEMU has just taken.
    pub(crate) fn new(stream: UnixStream) -> Result<Self, Failure> {
        stream.set_read_timeout(Some(patience::SILENCE_MAX))?;
        let mut qmp = Self { stream: BufReader::new(stream), events: Vec::new() };
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs one command of QMP.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Failure> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}")?;
        loop {
            let message = self.message()?;
            if let Some(error) = message.get("error") {
                return Err(format!("QEMU refuses {request}: {error}").into());
            }
            match message.get("return") {
                Some(answer) => return Ok(answer.clone()),
                None => self.events.push(message),
            }
        }
    }

    /// Waits for an event about a device.
    pub(crate) fn await_event(&mut self, name: &str, device: &str) -> Result<(), Failure> {
        let is_it = |event: &Value| event["event"] == name && event["data"]["device"] == device;
        while !self.events.iter().any(is_it) {
            let message = self.message()?;
            self.events.push(message);
        }
        self.events.clear();
        Ok(())
    }

    fn message(&mut self) -> Result<Value, Failure> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("QEMU has ended".into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}
