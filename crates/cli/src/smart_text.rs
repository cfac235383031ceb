//! What a drive says of itself, in a line for people.

use voltier_control::{Smart, SmartWarning};

/// A line for each drive below a device; `path` is the device's.
pub(crate) fn lines(path: &str, smart: &[Smart]) -> Vec<String> {
    let named = |it: &Smart| match smart.len() == 1 || it.drive == path {
        true => text(it),
        false => format!("{}: {}", it.drive, text(it)),
    };
    smart.iter().map(named).collect()
}

fn text(smart: &Smart) -> String {
    let figures = &smart.figures;
    let state = match (smart.passed, smart.warnings.is_empty()) {
        (Some(false), _) => "fails",
        (_, false) => "warns",
        (Some(true), true) => "ok",
        (None, true) => "no verdict",
    };
    let mut parts = vec![state.to_owned()];
    parts.extend(smart.warnings.iter().copied().map(SmartWarning::text).map(str::to_owned));
    parts.extend(figures.percentage_used.map(|it| format!("{it} % used")));
    parts.extend(figures.available_spare_percent.map(|spare| {
        match figures.available_spare_threshold_percent {
            Some(threshold) => format!("spare {spare} % (threshold {threshold} %)"),
            None => format!("spare {spare} %"),
        }
    }));
    parts.extend(figures.temperature_celsius.map(|it| format!("{it} °C")));
    parts.extend(figures.media_errors.map(|count| match (count, figures.media_errors_new) {
        (0, _) => "no media errors".to_owned(),
        (_, Some(new @ 1..)) => format!("{}, {new} of them new", counted(count, "media error")),
        _ => counted(count, "media error"),
    }));
    for (count, what) in [
        (figures.pending_sectors, "pending sector"),
        (figures.reallocated_sectors, "reallocated sector"),
    ] {
        parts.extend(count.filter(|it| *it > 0).map(|count| counted(count, what)));
    }
    parts.push(format!("read {} ago", age(smart.age_seconds)));
    parts.join(", ")
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// How long ago, in the largest unit that fits.
fn age(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    match seconds {
        0..MINUTE => format!("{seconds} s"),
        _ if seconds < 120 * MINUTE => format!("{} min", seconds / MINUTE),
        _ if seconds < 48 * 60 * MINUTE => format!("{} h", seconds / (60 * MINUTE)),
        _ => format!("{} days", seconds / (24 * 60 * MINUTE)),
    }
}

#[cfg(test)]
mod tests {
    use voltier_control::KnownFigures;

    use super::*;

    fn smart() -> Smart {
        let figures = KnownFigures {
            percentage_used: Some(3),
            available_spare_percent: Some(100),
            available_spare_threshold_percent: Some(10),
            temperature_celsius: Some(35),
            media_errors: Some(0),
            pending_sectors: Some(0),
            ..KnownFigures::default()
        };
        let drive = "/dev/nvme0n1".to_owned();
        Smart { drive, passed: Some(true), age_seconds: 125, figures, ..Smart::default() }
    }

    #[test]
    fn a_line_has_what_is_known_and_what_is_wrong() {
        let well =
            "ok, 3 % used, spare 100 % (threshold 10 %), 35 °C, no media errors, read 2 min ago";
        assert_eq!(lines("/dev/disk/by-id/x", &[smart()]), [well]);
        let both = lines("/dev/nvme0n1", &[smart(), Smart { drive: "/dev/sdb".into(), ..smart() }]);
        assert_eq!(both, [well.to_owned(), format!("/dev/sdb: {well}")]);
        let mut bad = Smart { passed: Some(false), age_seconds: 5, ..smart() };
        bad.warnings = vec![SmartWarning::ReadOnly];
        bad.figures = KnownFigures {
            media_errors: Some(3),
            media_errors_new: Some(1),
            pending_sectors: Some(1),
            reallocated_sectors: Some(12),
            ..KnownFigures::default()
        };
        assert_eq!(
            lines("", &[bad]),
            [
                "fails, it takes no writes any more, 3 media errors, 1 of them new, 1 pending sector, \
              12 reallocated sectors, read 5 s ago"
            ]
        );
        assert_eq!(lines("", &[Smart::default()]), ["no verdict, read 0 s ago"]);
    }

    #[test]
    fn an_age_has_the_largest_unit_that_fits() {
        let ages = [59, 60, 7199, 7200, 172_799, 172_800].map(age);
        assert_eq!(ages, ["59 s", "1 min", "119 min", "2 h", "47 h", "2 days"]);
    }
}
