//! The five jobs of the MaxIO document and what it published for them.

use std::time::Duration;

use crate::fio::{Job, Outcome, Pattern, Until};

/// The unit of a job's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureUnit {
    /// Decimal megabytes per second.
    MegabytesPerSecond,
    /// Requests per second.
    Iops,
}

impl FigureUnit {
    /// The name as written in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FigureUnit::MegabytesPerSecond => "MB/s",
            FigureUnit::Iops => "IOPS",
        }
    }
}

/// The document's two SSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ssd {
    /// Intel DC S3710, 800 GB.
    Sata,
    /// Comay BladeDrive E24, 800 GB.
    Pcie,
}

impl Ssd {
    /// The profile of the modelled drive.
    pub fn profile(self) -> &'static str {
        match self {
            Ssd::Sata => "ssd-sata",
            Ssd::Pcie => "ssd-pcie",
        }
    }

    /// The drive it models.
    pub fn drive(self) -> &'static str {
        match self {
            Ssd::Sata => "the document's SATA SSD (Intel DC S3710)",
            Ssd::Pcie => "the document's PCIe SSD (Comay BladeDrive E24)",
        }
    }
}

/// Published figures of one job with one kind of SSD, in the job's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The bare disk; the document has none for the mixed job.
    pub hdd: Option<f64>,
    /// The bare SSD.
    pub ssd: f64,
    /// The disk behind the SSD.
    pub accelerated: f64,
}

impl Published {
    /// The accelerated volume against the bare SSD.
    pub fn ratio(&self) -> f64 {
        self.accelerated / self.ssd
    }
}

/// One job of the document.
#[derive(Debug)]
pub struct JobSpec {
    /// Name in JSON and of the fio job.
    pub key: &'static str,
    /// Name in tables.
    pub label: &'static str,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes per request.
    pub block_bytes: u32,
    /// Requests in flight per thread.
    pub iodepth: u32,
    /// The unit that is reported.
    pub unit: FigureUnit,
    hdd: Option<f64>,
    sata: (f64, f64),
    pcie: (f64, f64),
}

/// All jobs run four threads.
pub const NUMJOBS: u32 = 4;

/// Where the threads of a job work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Areas {
    /// Each thread in a quarter of the volume of its own.
    Own,
    /// All threads over the same part of the volume, as in the document's job files: sequential ones begin
    /// at the same offset.
    One,
}

const fn sequential(
    key: &'static str,
    label: &'static str,
    pattern: Pattern,
    hdd: f64,
    sata: (f64, f64),
    pcie: (f64, f64),
) -> JobSpec {
    JobSpec {
        key,
        label,
        pattern,
        block_bytes: 256 << 10,
        iodepth: 16,
        unit: FigureUnit::MegabytesPerSecond,
        hdd: Some(hdd),
        sata,
        pcie,
    }
}

const fn random(
    key: &'static str,
    label: &'static str,
    pattern: Pattern,
    hdd: Option<f64>,
    sata: (f64, f64),
    pcie: (f64, f64),
) -> JobSpec {
    JobSpec {
        key,
        label,
        pattern,
        block_bytes: 4 << 10,
        iodepth: 64,
        unit: FigureUnit::Iops,
        hdd,
        sata,
        pcie,
    }
}

/// The jobs in the order of the document's tables. Figures: disk, (SSD, accelerated) for both SSDs.
pub static JOBS: [JobSpec; 5] = [
    sequential("seq_write", "seq write", Pattern::Write, 107.0, (268.0, 270.0), (1777.0, 1454.0)),
    sequential("seq_read", "seq read", Pattern::Read, 113.0, (279.0, 298.0), (2012.0, 1700.0)),
    random(
        "rand_write",
        "random write",
        Pattern::RandWrite,
        Some(238.0),
        (38092.0, 38279.0),
        (148_768.0, 101_667.0),
    ),
    random(
        "rand_read",
        "random read",
        Pattern::RandRead,
        Some(233.0),
        (49687.0, 49721.0),
        (164_449.0, 151_199.0),
    ),
    random(
        "rand_rw",
        "random 75r25w",
        Pattern::RandRw(75),
        None,
        (49870.0, 48048.0),
        (156_077.0, 139_588.0),
    ),
];

impl JobSpec {
    /// The job for fio on the first `size_bytes` of a volume, for some seconds.
    pub fn job(&self, size_bytes: u64, seconds: u32, areas: Areas) -> Job {
        let (size_bytes, more) = match areas {
            Areas::One => (size_bytes, Vec::new()),
            Areas::Own => {
                let part = size_bytes / u64::from(NUMJOBS);
                (part, vec![("offset_increment", part.to_string())])
            }
        };
        Job {
            name: self.key.to_owned(),
            pattern: self.pattern,
            block_bytes: u64::from(self.block_bytes),
            iodepth: self.iodepth,
            numjobs: NUMJOBS,
            size_bytes,
            until: Until::Time(Duration::from_secs(seconds.into())),
            more,
        }
    }

    /// The job of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn find(key: &str) -> &'static JobSpec {
        JOBS.iter().find(|job| job.key == key).expect("a job of the document")
    }

    /// The figure by which the job is judged, in its unit.
    pub fn figure(&self, outcome: &Outcome) -> f64 {
        match self.unit {
            FigureUnit::MegabytesPerSecond => outcome.megabytes_per_second(),
            FigureUnit::Iops => outcome.iops(),
        }
    }

    /// The figures of the document for this job.
    pub fn published(&self, ssd: Ssd) -> Published {
        let (bare, accelerated) = match ssd {
            Ssd::Sata => self.sata,
            Ssd::Pcie => self.pcie,
        };
        Published { hdd: self.hdd, ssd: bare, accelerated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Target;

    #[test]
    fn the_jobs_have_the_parameters_of_the_documents_job_files() {
        let target = Target::Nbd("nbd://x".to_owned());
        for (spec, expected) in JOBS.iter().zip([
            "--rw=write --bs=256k --size=1024 --numjobs=4 --iodepth=16",
            "--rw=read --bs=256k --size=1024 --numjobs=4 --iodepth=16",
            "--rw=randwrite --bs=4k --ba=4k --size=1024 --numjobs=4 --iodepth=64",
            "--rw=randread --bs=4k --ba=4k --size=1024 --numjobs=4 --iodepth=64",
            "--rw=randrw --rwmixread=75 --bs=4k --ba=4k --size=1024 --numjobs=4 --iodepth=64",
        ]) {
            let line = spec.job(1024, 9, Areas::One).command_line(&target);
            assert!(line.contains(expected), "{line}");
            for common in [
                "--direct=1",
                "--thread=1",
                "--norandommap=1",
                "--randrepeat=0",
                "--group_reporting",
                "--time_based --runtime=9",
            ] {
                assert!(line.contains(common), "{line}");
            }
            assert!(!line.contains("offset"), "the document's threads share one area: {line}");
        }
    }

    #[test]
    fn own_areas_lie_side_by_side_and_fill_the_volume() {
        let target = Target::Nbd("nbd://x".to_owned());
        for spec in &JOBS {
            let line = spec.job(1 << 20, 9, Areas::Own).command_line(&target);
            for option in ["--size=262144", "--numjobs=4", "--offset_increment=262144"] {
                assert!(line.contains(option), "{line}");
            }
        }
    }

    #[test]
    fn published_ratios_are_the_documents() {
        let percent = |spec: &JobSpec, ssd| (spec.published(ssd).ratio() * 1000.0).round() / 10.0;
        let sata: Vec<f64> = JOBS.iter().map(|spec| percent(spec, Ssd::Sata)).collect();
        let pcie: Vec<f64> = JOBS.iter().map(|spec| percent(spec, Ssd::Pcie)).collect();
        assert_eq!(sata, [100.7, 106.8, 100.5, 100.1, 96.3]);
        assert_eq!(pcie, [81.8, 84.5, 68.3, 91.9, 89.4]);
    }
}
