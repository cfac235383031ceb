//! Several clients at once: clients x processes, through fio's server mode.

use serde::{Deserialize, Serialize};
use voltier_results::result::{Access, Axes};

use super::jobs::{fill_group, once, random_data, timed};
use super::step::{Group, Planned, Subject, Work};
use super::values::{ByteSize, Extent, check, not_empty, time};
use crate::fio::Pattern;

/// Where the clients run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Network namespaces of this machine, made and removed for the run; needs root.
    Namespaces,
    /// Servers on Unix sockets of this machine.
    Local,
    /// Hosts on which `fio --server` runs.
    Hosts,
}

/// The plan `clients`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// Seconds of each point.
    pub seconds: f64,
    /// How much of the target is used; it is divided among the clients.
    pub size: Extent,
    /// Whether the target is written once before.
    pub fill: bool,
    /// Clients at the same time.
    pub clients: Vec<u32>,
    /// Processes of each client.
    pub processes: Vec<u32>,
    /// Orders of addresses.
    pub access: Vec<Access>,
    /// Shares of reads, percent of requests.
    pub reads: Vec<u8>,
    /// Bytes of a sequential request.
    pub block_sequential: ByteSize,
    /// Bytes of a random request.
    pub block_random: ByteSize,
    /// Requests in flight of each process.
    pub depth: u32,
    /// `namespaces`, `local` or `hosts`.
    pub transport: Transport,
    /// Hosts, as fio's `--client` takes them, for `transport = "hosts"`.
    pub hosts: Vec<String>,
}

impl Clients {
    pub(super) fn new(quick: bool) -> Clients {
        Clients {
            seconds: if quick { 1.0 } else { 60.0 },
            size: if quick { Extent::Bytes(128 << 20) } else { Extent::Whole },
            fill: true,
            clients: if quick { vec![1, 2, 4] } else { vec![1, 2, 4, 8] },
            processes: if quick { vec![1, 4] } else { vec![1, 4, 16, 64] },
            access: vec![Access::Sequential, Access::Random],
            reads: vec![100, 0],
            block_sequential: ByteSize(128 << 10),
            block_random: ByteSize(4096),
            depth: 1,
            transport: Transport::Namespaces,
            hosts: Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check(self.seconds, &[self.block_random, self.block_sequential])?;
        not_empty("access", &self.access)?;
        not_empty("reads", &self.reads)?;
        super::values::percentages("reads", &self.reads)?;
        super::values::counts("clients", &self.clients)?;
        super::values::counts("processes", &self.processes)?;
        super::values::counts("depth", &[self.depth])?;
        let most = self.clients.iter().copied().max().unwrap_or(0);
        if self.transport == Transport::Hosts && (self.hosts.len() as u32) < most {
            return Err(format!(
                "{most} clients need as many hosts: hosts has {}",
                self.hosts.len()
            ));
        }
        if most > 200 {
            return Err(format!("{most} clients: 200 is the most"));
        }
        Ok(())
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects {
            if self.fill || subject.is_new {
                groups.push(fill_group(subject, "fill"));
            }
            groups.push(once(subject, self.points(subject)));
        }
        groups
    }

    fn points(&self, subject: &Subject) -> Vec<Planned> {
        let mut points = Vec::new();
        for access in &self.access {
            let is_random = *access == Access::Random;
            let block = if is_random { self.block_random } else { self.block_sequential };
            for read in &self.reads {
                for clients in &self.clients {
                    for processes in &self.processes {
                        let part = subject.size_bytes / u64::from(*clients) / block.0 * block.0;
                        let shape = (*processes, self.depth);
                        let pattern = Pattern::of(is_random, *read);
                        let part = (part, time(self.seconds));
                        let mut job = timed("client", pattern, block.0, shape, part);
                        job.more = random_data();
                        let axes = Axes {
                            clients: Some(*clients),
                            ..super::jobs::axes_of("clients", &job)
                        };
                        points.push(Planned::measured(axes, Work::Clients(job)));
                    }
                }
            }
        }
        points
    }
}
