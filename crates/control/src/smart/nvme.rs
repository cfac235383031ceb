//! The log of health of an NVMe drive, and what its controller says of itself, by the NVM Express base specification.

use super::figures::KnownFigures;
use super::said::{Smart, SmartWarning, printable};

/// Bytes of the log of health; what the controller says is behind it.
const LOG_BYTES: usize = 512;
/// The drive counts in units of a thousand times 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;
/// 0 degrees Celsius in kelvin, as the specification rounds it.
const ZERO_CELSIUS_K: u64 = 273;

/// What was read in words; `None` of less than a log, and of one without any content.
pub(super) fn parse(bytes: &[u8]) -> Option<Smart> {
    let (log, controller) = bytes.split_at_checked(LOG_BYTES)?;
    if log.iter().all(|it| *it == 0) {
        return None;
    }
    let bits = *log.first()?;
    let is_set = |bit: usize| bits & 1 << bit != 0;
    let all = SmartWarning::ALL.into_iter().enumerate();
    let warnings: Vec<SmartWarning> =
        all.filter(|(bit, _)| is_set(*bit)).map(|(_, it)| it).collect();
    let percent = |at: usize| log.get(at).map(|it| u64::from(*it));
    let count = |at: usize| counter(log, at).map(|it| u64::try_from(it).unwrap_or(u64::MAX));
    let bytes_of = |at: usize| {
        let bytes = counter(log, at)?.saturating_mul(DATA_UNIT_BYTES);
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    };
    let figures = KnownFigures {
        temperature_celsius: celsius(log, 1),
        available_spare_percent: percent(3),
        available_spare_threshold_percent: percent(4),
        percentage_used: percent(5),
        bytes_read: bytes_of(32),
        bytes_written: bytes_of(48),
        power_on_hours: count(128),
        unsafe_shutdowns: count(144),
        media_errors: count(160),
        temperature_warning_celsius: celsius(controller, 266),
        ..KnownFigures::default()
    };
    Some(Smart {
        protocol: "nvme".to_owned(),
        serial: text(controller, 4, 20),
        model: text(controller, 24, 40),
        firmware: text(controller, 64, 8),
        passed: Some(!warnings.iter().any(|it| it.is_failure())),
        warnings,
        figures,
        ..Smart::default()
    })
}

/// A counter of 16 bytes.
fn counter(log: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(log.get(at..at + 16)?.try_into().ok()?))
}

/// A temperature in kelvin; `None` of 0, which drives have that do not say.
fn celsius(bytes: &[u8], at: usize) -> Option<u64> {
    let kelvin = u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
    (kelvin > 0).then(|| u64::from(kelvin).saturating_sub(ZERO_CELSIUS_K))
}

/// A text of printable ASCII, filled up with blanks.
fn text(controller: &[u8], at: usize, bytes: usize) -> String {
    let Some(text) = controller.get(at..at + bytes) else { return String::new() };
    printable(&String::from_utf8_lossy(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log and a controller as the specification lays them out.
    fn healthy() -> Vec<u8> {
        let mut bytes = vec![0; 512 + 4096];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(1, &308_u16.to_le_bytes());
        put(3, &[100, 10, 3]);
        put(32, &2_000_u128.to_le_bytes());
        put(48, &4_000_u128.to_le_bytes());
        put(64, &7_u128.to_le_bytes());
        put(112, &8_u128.to_le_bytes());
        put(128, &1234_u128.to_le_bytes());
        put(144, &5_u128.to_le_bytes());
        put(160, &6_u128.to_le_bytes());
        put(176, &9_u128.to_le_bytes());
        put(512 + 4, b"S1               \0  ");
        put(512 + 24, b"Fast Drive 9000                         ");
        put(512 + 64, b"FW 1.0  ");
        put(512 + 266, &343_u16.to_le_bytes());
        bytes
    }

    #[test]
    fn each_figure_is_read_where_the_specification_has_it() {
        let smart = parse(&healthy()).unwrap();
        assert_eq!(
            (smart.serial.as_str(), smart.model.as_str(), smart.firmware.as_str()),
            ("S1", "Fast Drive 9000", "FW 1.0")
        );
        assert_eq!((smart.passed, smart.warnings.len()), (Some(true), 0));
        let expected = KnownFigures {
            temperature_celsius: Some(35),
            available_spare_percent: Some(100),
            available_spare_threshold_percent: Some(10),
            percentage_used: Some(3),
            bytes_read: Some(1_024_000_000),
            bytes_written: Some(2_048_000_000),
            power_on_hours: Some(1234),
            unsafe_shutdowns: Some(5),
            media_errors: Some(6),
            temperature_warning_celsius: Some(70),
            ..KnownFigures::default()
        };
        assert_eq!(smart.figures, expected);
    }

    #[test]
    fn each_bit_of_the_warning_has_its_word_and_some_mean_failure() {
        for (bit, warning) in SmartWarning::ALL.into_iter().enumerate() {
            let mut bytes = healthy();
            bytes[0] = 1 << bit;
            let smart = parse(&bytes).unwrap();
            assert_eq!(smart.warnings, [warning]);
            assert_eq!(smart.passed, Some(bit < 2), "{warning:?}");
        }
        let mut bytes = healthy();
        bytes[0] = 0b1100_1001;
        let warnings = parse(&bytes).unwrap().warnings;
        assert_eq!(warnings, [SmartWarning::SpareLow, SmartWarning::ReadOnly]);
    }

    #[test]
    fn a_log_alone_is_enough_and_less_than_that_is_nothing() {
        let smart = parse(&healthy()[..512]).unwrap();
        assert_eq!(smart.figures.percentage_used, Some(3));
        assert_eq!(smart.figures.temperature_warning_celsius, None);
        assert_eq!(smart.serial, "");
        let bytes = healthy();
        for length in [0, 1, 511] {
            assert_eq!(parse(&bytes[..length]), None);
        }
        assert!(parse(&bytes[..700]).is_some());
        assert_eq!(parse(&[0; 512]), None, "the drive said nothing");
    }

    #[test]
    fn numbers_beyond_all_measure_and_the_cold_are_no_panic() {
        let smart = parse(&[0xff; 512 + 4096]).unwrap();
        assert_eq!(smart.figures.bytes_written, Some(u64::MAX));
        assert_eq!(smart.figures.percentage_used, Some(255));
        let mut bytes = healthy();
        bytes[1..3].copy_from_slice(&250_u16.to_le_bytes());
        assert_eq!(parse(&bytes).unwrap().figures.temperature_celsius, Some(0));
        bytes[1..3].copy_from_slice(&[0, 0]);
        assert_eq!(parse(&bytes).unwrap().figures.temperature_celsius, None);
    }
}
