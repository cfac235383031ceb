//! The machine a run was made on, for its report.

use std::fs;

/// The facts of a machine that a reader needs to judge a figure.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processor's own name, or its architecture where it has none.
    pub cpu: String,
    /// Processors this program may use.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution, by its pretty name.
    pub system: String,
}

impl Machine {
    /// Asks the running machine. A fact that it does not tell is "unknown".
    pub fn this() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name", ':')
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(&read("/proc/meminfo")),
            kernel: known(read("/proc/sys/kernel/osrelease").trim().to_owned()),
            system: known(field(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_default()),
        }
    }

    /// One line: "Intel Xeon, 2 processors, 23 GiB, Linux 6.18, Debian 12".
    pub fn describe(&self) -> String {
        let processors = if self.cpus == 1 { "processor" } else { "processors" };
        // Rounded: the kernel keeps a part of the memory for itself.
        let gib = (self.memory_bytes as f64 / f64::from(1 << 30)).round();
        format!(
            "{}, {} {processors}, {gib} GiB, Linux {}, {}",
            self.cpu, self.cpus, self.kernel, self.system
        )
    }
}

fn known(text: String) -> String {
    if text.is_empty() { "unknown".to_owned() } else { text }
}

/// The value after `key` and `separator` on the first line that starts with `key`.
fn field(text: &str, key: &str, separator: char) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    let value = line.split_once(separator)?.1.trim().trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal", ':');
    let kib = kib.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_surrounds_them() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor @ 2.6 GHz\n";
        assert_eq!(field(cpuinfo, "model name", ':').unwrap(), "A Processor @ 2.6 GHz");
        assert_eq!(field("PRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME", '=').unwrap(), "Debian 12");
        assert_eq!(field("", "model name", ':'), None);
        assert_eq!(memory_bytes("MemTotal:       1024 kB\n"), 1 << 20);
    }

    #[test]
    fn the_description_is_one_line() {
        let text = Machine::this().describe();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
