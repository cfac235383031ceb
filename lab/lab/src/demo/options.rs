//! The choices of the demonstration, and how a user says them.

use std::path::PathBuf;

use voltier_results::size::parse_bytes;

use crate::LabError;
use crate::plan::maxio_jobs::Ssd;

/// Eleven of these are in memory: small enough for a laptop, large enough that the models' caches
/// do not matter.
const DEFAULT_SIZE_BYTES: u64 = 256 << 20;

/// All runs of this and all fills end within two and a half minutes.
const DEFAULT_SECONDS: u32 = 2;

/// Four sequential threads at depth 16 with 256 KiB requests need room to run.
const SMALLEST_SIZE_BYTES: u64 = 64 << 20;

/// The cache's SSD, in test sizes: the document's proportion (800 GB for a test set of 100 GB). No
/// more than an eighth of the lines can be dirty then, which is below the threshold of destaging.
pub(crate) const SSD_PER_SIZE: u64 = 8;

/// How often the test set is as large as the small SSD, on which the document's warning is tried.
pub(crate) const SIZE_PER_SMALL_SSD: u64 = 2;

/// How often SSD and accelerated volume are measured, in turns; the median counts. A machine that
/// slows down for a while does so for both.
pub(crate) const TURNS: usize = 3;

/// How to run the demonstration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The `voltier` binary to drive.
    pub binary: PathBuf,
    /// Folder for `result.json` and `report.html`; made when it is missing.
    pub out: PathBuf,
    /// Size of each volume.
    pub size_bytes: u64,
    /// Seconds of each run.
    pub seconds: u32,
    /// The SSD that is modelled.
    pub ssd: Ssd,
}

impl Options {
    /// The defaults, changed by DEMO_SIZE, DEMO_SECONDS and DEMO_SSD where they are set.
    ///
    /// # Errors
    /// `Setting`, with what would be accepted.
    pub fn from_env(binary: PathBuf, out: PathBuf) -> Result<Options, LabError> {
        Options::from_settings(binary, out, |name| {
            std::env::var(name).ok().filter(|value| !value.is_empty())
        })
    }

    fn from_settings(
        binary: PathBuf,
        out: PathBuf,
        setting: impl Fn(&str) -> Option<String>,
    ) -> Result<Options, LabError> {
        let size_bytes = match setting("DEMO_SIZE") {
            None => DEFAULT_SIZE_BYTES,
            Some(value) => parse_bytes(&value)
                .filter(|size| (SMALLEST_SIZE_BYTES..=1 << 44).contains(size))
                .filter(|size| size.is_multiple_of(1 << 20))
                .ok_or_else(|| {
                    refused(
                        "DEMO_SIZE",
                        value,
                        "give a size in whole MiB from 64M, like 512M or 2G",
                    )
                })?,
        };
        let seconds = match setting("DEMO_SECONDS") {
            None => DEFAULT_SECONDS,
            Some(value) => value
                .parse()
                .ok()
                .filter(|seconds| (1..=86_400).contains(seconds))
                .ok_or_else(|| refused("DEMO_SECONDS", value, "give whole seconds from 1"))?,
        };
        let ssd = match setting("DEMO_SSD").as_deref() {
            None | Some("sata") => Ssd::Sata,
            Some("pcie") => Ssd::Pcie,
            Some(other) => return Err(refused("DEMO_SSD", other.into(), "give sata or pcie")),
        };
        Ok(Options { binary, out, size_bytes, seconds, ssd })
    }
}

fn refused(name: &'static str, value: String, why: &str) -> LabError {
    LabError::Setting { name, value, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::maxio_jobs::JOBS;

    fn with(name: &str, value: &str) -> Result<Options, LabError> {
        Options::from_settings("voltier".into(), "demo".into(), |asked| {
            (asked == name).then(|| value.to_owned())
        })
    }

    #[test]
    fn settings_change_what_they_name_and_nothing_else() {
        let default = with("", "").unwrap();
        assert_eq!(
            with("DEMO_SIZE", "1G").unwrap(),
            Options { size_bytes: 1 << 30, ..default.clone() }
        );
        assert_eq!(with("DEMO_SECONDS", "2").unwrap(), Options { seconds: 2, ..default.clone() });
        assert_eq!(with("DEMO_SSD", "pcie").unwrap(), Options { ssd: Ssd::Pcie, ..default });
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_refused_with_what_would_be() {
        for (name, value) in [
            ("DEMO_SIZE", "1"),
            ("DEMO_SIZE", "lots"),
            ("DEMO_SIZE", "67108865"),
            ("DEMO_SECONDS", "0"),
            ("DEMO_SECONDS", "1.5"),
            ("DEMO_SSD", "nvme"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value} is not usable: give ")), "{error}");
        }
    }

    #[test]
    fn the_default_ends_within_two_and_a_half_minutes() {
        let default = with("", "").unwrap();
        let size = default.size_bytes as f64;
        // Preparation, and the small SSD's: through it the set goes to the disk twice.
        let fills = size / 107e6 + size / 268e6 + SSD_PER_SIZE as f64 * size / 250e6;
        let small = 2.0 * size / 107e6;
        // The passes over a cold cache and a warm one.
        let passes = size / 50e6 + size / 270e6;
        let one_area_and_alone = 2 * 2 + 1 + 3;
        let runs = JOBS.len() * (1 + 2 * TURNS) + one_area_and_alone;
        // fio takes about half a second to start and to end.
        let seconds = (f64::from(default.seconds) + 0.6) * runs as f64;
        assert!(seconds + fills + small + passes < 150.0);
    }
}
