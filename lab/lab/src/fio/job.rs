//! One fio job as arguments: what is on its command line, and nothing that is not.

use std::time::Duration;

use voltier_results::size::format_bytes;

/// The target that fio reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An NBD export, by URI, through fio's `nbd` engine (libnbd).
    Nbd(String),
    /// Files or block devices, by path, with the named engine and direct I/O. Of several, every
    /// request takes one at random.
    Files {
        /// Paths of the files or devices.
        paths: Vec<String>,
        /// fio's name of the engine: `io_uring`, `libaio`, `psync`.
        engine: &'static str,
    },
    /// An RBD image through fio's `rbd` engine (librbd).
    Rbd {
        /// Pool.
        pool: String,
        /// Image.
        image: String,
        /// Ceph user without `client.`.
        user: String,
    },
}

/// fio's `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random, this share of it reads (percent).
    RandRw(u8),
    /// Sequential, this share of it reads (percent).
    Rw(u8),
    /// Sequential discards.
    Trim,
}

impl Pattern {
    /// The pattern of an order of addresses and a share of reads.
    pub fn of(is_random: bool, read_percent: u8) -> Pattern {
        match (is_random, read_percent) {
            (true, 100..) => Pattern::RandRead,
            (true, 0) => Pattern::RandWrite,
            (true, share) => Pattern::RandRw(share),
            (false, 100..) => Pattern::Read,
            (false, 0) => Pattern::Write,
            (false, share) => Pattern::Rw(share),
        }
    }

    /// Whether any request changes the target.
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead)
    }

    /// Whether addresses are random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw(_))
    }

    /// Share of reads, percent of requests.
    pub fn read_percent(self) -> u8 {
        match self {
            Pattern::Read | Pattern::RandRead => 100,
            Pattern::Write | Pattern::RandWrite | Pattern::Trim => 0,
            Pattern::RandRw(share) | Pattern::Rw(share) => share,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
            Pattern::RandRw(_) => "randrw",
            Pattern::Rw(_) => "rw",
            Pattern::Trim => "trim",
        }
    }
}

/// When a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this time (`time_based`).
    Time(Duration),
    /// When every job has moved `size_bytes` once.
    Once,
}

/// One fio job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name in fio's output and in messages.
    pub name: String,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes per request.
    pub block_bytes: u64,
    /// Requests in flight per job.
    pub iodepth: u32,
    /// Parallel jobs, threads of one process; their figures are reported together.
    pub numjobs: u32,
    /// The part of the target that is used, from its start.
    pub size_bytes: u64,
    /// The end of the job.
    pub until: Until,
    /// Further options as fio names them, `offset_increment` for one, with their values.
    pub more: Vec<(&'static str, String)>,
}

impl Job {
    /// The options in fio's names; an option without a value is a switch.
    pub fn options(&self, target: &Target) -> Vec<(&'static str, Option<String>)> {
        let mut options = vec![("name", Some(self.name.clone()))];
        let mut add = |key, value: String| options.push((key, Some(value)));
        match target {
            Target::Nbd(uri) => {
                add("ioengine", "nbd".to_owned());
                add("uri", uri.clone());
            }
            Target::Files { paths, engine } => {
                // fio splits file names at colons.
                let paths: Vec<String> =
                    paths.iter().map(|path| path.replace(':', "\\:")).collect();
                add("ioengine", (*engine).to_owned());
                add("filename", paths.join(":"));
                let is_chosen = self.more.iter().any(|(key, _)| *key == "file_service_type");
                if paths.len() > 1 && !is_chosen {
                    add("file_service_type", "random".to_owned());
                }
            }
            Target::Rbd { pool, image, user } => {
                add("ioengine", "rbd".to_owned());
                add("clientname", user.clone());
                add("pool", pool.clone());
                add("rbdname", image.clone());
            }
        }
        for key in ["direct", "thread"] {
            add(key, "1".to_owned());
        }
        options.push(("group_reporting", None));
        let mut add = |key, value: String| options.push((key, Some(value)));
        // A job that goes over its part once meets every block once, also in random order.
        if !(self.until == Until::Once && self.pattern.is_random()) {
            add("norandommap", "1".to_owned());
        }
        add("randrepeat", "0".to_owned());
        let block = format_bytes(self.block_bytes).to_lowercase();
        add("rw", self.pattern.name().to_owned());
        if let Pattern::RandRw(percent) | Pattern::Rw(percent) = self.pattern {
            add("rwmixread", percent.to_string());
        }
        add("bs", block.clone());
        if self.pattern.is_random() {
            add("ba", block);
        }
        add("size", self.size_bytes.to_string());
        add("numjobs", self.numjobs.to_string());
        add("iodepth", self.iodepth.to_string());
        if let Until::Time(time) = self.until {
            options.push(("time_based", None));
            options.push(("runtime", Some(fio_time(time))));
        }
        options.extend(self.more.iter().map(|(key, value)| (*key, Some(value.clone()))));
        options
    }

    /// The arguments, as one would type them.
    pub fn arguments(&self, target: &Target) -> Vec<String> {
        let argument = |(key, value): (&'static str, Option<String>)| match value {
            Some(value) => format!("--{key}={value}"),
            None => format!("--{key}"),
        };
        self.options(target).into_iter().map(argument).collect()
    }

    /// The whole command as one line, for reports.
    pub fn command_line(&self, target: &Target) -> String {
        format!("fio {}", self.arguments(target).join(" "))
    }

    /// Whether the job's requests have several sizes.
    pub fn is_split(&self) -> bool {
        self.more.iter().any(|(key, _)| *key == "bssplit")
    }

    /// Whether the job changes the target.
    pub fn writes(&self) -> bool {
        self.pattern.writes()
    }
}

/// A time as fio reads it: "8" seconds, or "500ms".
fn fio_time(time: Duration) -> String {
    if time.subsec_millis() == 0 && time.as_secs() > 0 {
        return time.as_secs().to_string();
    }
    format!("{}ms", time.as_millis().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            name: "rand_rw".to_owned(),
            pattern: Pattern::RandRw(75),
            block_bytes: 4096,
            iodepth: 64,
            numjobs: 4,
            size_bytes: 1 << 30,
            until: Until::Time(Duration::from_secs(8)),
            more: Vec::new(),
        }
    }

    #[test]
    fn the_command_line_has_the_parameters_of_the_job_and_no_others() {
        let target = Target::Nbd("nbd+unix:///v?socket=/run/v.sock".to_owned());
        assert_eq!(
            job().command_line(&target),
            "fio --name=rand_rw --ioengine=nbd --uri=nbd+unix:///v?socket=/run/v.sock --direct=1 \
             --thread=1 --group_reporting --norandommap=1 --randrepeat=0 --rw=randrw \
             --rwmixread=75 --bs=4k --ba=4k --size=1073741824 --numjobs=4 --iodepth=64 \
             --time_based --runtime=8"
        );
        let once = Job { pattern: Pattern::Write, until: Until::Once, ..job() };
        let file = |paths: &[&str]| Target::Files {
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            engine: "psync",
        };
        let line = once.command_line(&file(&["a:b"]));
        assert!(line.contains("--filename=a\\:b") && !line.contains("runtime"), "{line}");
        let line = once.command_line(&file(&["a", "b"]));
        assert!(line.contains("--filename=a:b --file_service_type=random"), "{line}");
    }

    #[test]
    fn times_below_a_second_are_in_milliseconds() {
        assert_eq!(fio_time(Duration::from_millis(500)), "500ms");
        assert_eq!(fio_time(Duration::from_millis(1500)), "1500ms");
        assert_eq!(fio_time(Duration::from_secs(60)), "60");
    }

    #[test]
    fn a_share_of_reads_names_the_pattern() {
        for (is_random, share, pattern) in [
            (true, 100, Pattern::RandRead),
            (true, 0, Pattern::RandWrite),
            (true, 65, Pattern::RandRw(65)),
            (false, 100, Pattern::Read),
            (false, 5, Pattern::Rw(5)),
        ] {
            assert_eq!(Pattern::of(is_random, share), pattern);
            assert_eq!(pattern.read_percent(), share);
            assert_eq!(pattern.is_random(), is_random);
        }
    }
}
