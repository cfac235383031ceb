//! What `smartctl --json` prints of ATA, SCSI and NVMe drives, by the shape of its versions 7.0 to 7.4.
//!
//! Each value is looked for by itself: one that is missing, or is of another kind, is not known, and the others are.

use serde_json::Value;
use voltier_block::{GIB, MIB};

use super::figures::KnownFigures;
use super::said::{Smart, SmartWarning, printable};

/// Attributes of SSDs that begin at 100 and count down what is left of their life, the most direct first. By number
/// and name: makers use the numbers for other things too, and smartctl knows the drives by name.
const LIFE_LEFT: [(u64, &str); 6] = [
    (231, "SSD_Life_Left"),
    (202, "Percent_Lifetime_Remain"),
    (169, "Remaining_Lifetime_Perc"),
    (233, "Media_Wearout_Indicator"),
    (177, "Wear_Leveling_Count"),
    (173, "Wear_Leveling_Count"),
];
const SPARE_LEFT: (u64, &str) = (232, "Available_Reservd_Space");
const REALLOCATED: (u64, &str) = (5, "Reallocated_Sector_Ct");
const PENDING: (u64, &str) = (197, "Current_Pending_Sector");
const UNCORRECTED: (u64, &str) = (187, "Reported_Uncorrect");

/// Attributes that count what hosts wrote and read, by their names, and the unit; 0 is a logical block.
const WRITTEN: [(&str, u64); 6] = [
    ("Total_LBAs_Written", 0),
    ("Host_Writes_32MiB", 32 * MIB),
    ("Host_Writes_MiB", MIB),
    ("Host_Writes_GiB", GIB),
    ("Lifetime_Writes_GiB", GIB),
    ("Total_Writes_GiB", GIB),
];
const READ: [(&str, u64); 6] = [
    ("Total_LBAs_Read", 0),
    ("Host_Reads_32MiB", 32 * MIB),
    ("Host_Reads_MiB", MIB),
    ("Host_Reads_GiB", GIB),
    ("Lifetime_Reads_GiB", GIB),
    ("Total_Reads_GiB", GIB),
];

/// What smartctl printed in words; `None` when that is no JSON, or nothing of a drive's health: one that sleeps, one
/// that has no SMART.
pub(super) fn parse(bytes: &[u8]) -> Option<Smart> {
    let all: Value = serde_json::from_slice(bytes).ok()?;
    let protocol = text(&all, "/device/protocol").to_lowercase();
    let mut smart = Smart {
        protocol,
        model: first_text(&all, &["/model_name", "/scsi_model_name"]),
        serial: text(&all, "/serial_number"),
        firmware: first_text(&all, &["/firmware_version", "/scsi_revision"]),
        passed: all.pointer("/smart_status/passed").and_then(Value::as_bool),
        figures: of_all(&all),
        ..Smart::default()
    };
    if all.get("ata_smart_attributes").is_some() {
        of_ata(&all, &mut smart.figures);
    }
    if let Some(log) = all.get("nvme_smart_health_information_log") {
        of_nvme(log, &mut smart);
    }
    smart.says_anything().then_some(smart)
}

/// What all kinds of drives have in the same place, and SCSI alone.
fn of_all(all: &Value) -> KnownFigures {
    let used = ["/endurance_used/current_percent", "/scsi_percentage_used_endurance_indicator"];
    KnownFigures {
        // A drive without a thermometer says 0, and so do one's limits.
        temperature_celsius: number(all, "/temperature/current").filter(|it| *it > 0),
        temperature_warning_celsius: number(all, "/temperature/drive_trip").filter(|it| *it > 0),
        power_on_hours: number(all, "/power_on_time/hours"),
        percentage_used: used.iter().find_map(|at| number(all, at)).or_else(|| statistic(all)),
        available_spare_percent: number(all, "/spare_available/current_percent"),
        available_spare_threshold_percent: number(all, "/spare_available/threshold_percent"),
        reallocated_sectors: number(all, "/scsi_grown_defect_list"),
        pending_sectors: number(all, "/scsi_pending_defects/count"),
        media_errors: scsi_errors(all),
        ..KnownFigures::default()
    }
}

/// The errors of reads, writes and checks that a SCSI drive could not correct.
fn scsi_errors(all: &Value) -> Option<u64> {
    let of =
        |kind| number(all, &format!("/scsi_error_counter_log/{kind}/total_uncorrected_errors"));
    let errors: Vec<u64> = ["read", "write", "verify"].into_iter().filter_map(of).collect();
    (!errors.is_empty()).then(|| errors.into_iter().fold(0, u64::saturating_add))
}

/// How much of the life is used, by the statistics that an ATA drive keeps.
fn statistic(all: &Value) -> Option<u64> {
    let pages = all.pointer("/ata_device_statistics/pages")?.as_array()?;
    let rows = pages.iter().filter_map(|page| page.get("table")?.as_array()).flatten();
    let mut rows = rows.filter(|row| {
        let is_valid = row.pointer("/flags/valid").and_then(Value::as_bool) != Some(false);
        is_valid && text(row, "/name") == "Percentage Used Endurance Indicator"
    });
    number(rows.next()?, "/value")
}

fn of_ata(all: &Value, figures: &mut KnownFigures) {
    let table = all.pointer("/ata_smart_attributes/table").and_then(Value::as_array);
    let rows: Vec<&Value> = table.into_iter().flatten().collect();
    let row = |(id, name): (u64, &str)| {
        rows.iter().find(|row| number(row, "/id") == Some(id) && text(row, "/name") == name)
    };
    let raw = |which| number(row(which)?, "/raw/value");
    let left = |which| number(row(which)?, "/value").filter(|it| (1..=100).contains(it));
    let used = || LIFE_LEFT.into_iter().find_map(left).map(|left| 100 - left);
    figures.percentage_used = figures.percentage_used.or_else(used);
    if figures.available_spare_percent.is_none() && row(SPARE_LEFT).is_some() {
        figures.available_spare_percent = left(SPARE_LEFT);
        let threshold = row(SPARE_LEFT).and_then(|row| number(row, "/thresh"));
        figures.available_spare_threshold_percent = threshold.filter(|it| (1..=100).contains(it));
    }
    figures.reallocated_sectors = raw(REALLOCATED);
    figures.pending_sectors = raw(PENDING);
    // The upper half of the number is something else with some makers.
    figures.media_errors = raw(UNCORRECTED).map(|it| it & 0xffff_ffff);
    let block_bytes = number(all, "/logical_block_size").filter(|it| *it > 0).unwrap_or(512);
    let moved = |names: [(&str, u64); 6]| {
        names.into_iter().find_map(|(name, unit)| {
            let row = rows.iter().find(|row| text(row, "/name") == name)?;
            let unit = if unit == 0 { block_bytes } else { unit };
            Some(number(row, "/raw/value")?.saturating_mul(unit))
        })
    };
    figures.bytes_written = moved(WRITTEN);
    figures.bytes_read = moved(READ);
}

/// An NVMe drive that only smartctl reaches: behind a bridge.
fn of_nvme(log: &Value, smart: &mut Smart) {
    let bits = number(log, "/critical_warning").unwrap_or(0);
    let all = SmartWarning::ALL.into_iter().enumerate();
    smart.warnings = all.filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, it)| it).collect();
    if !smart.warnings.is_empty() {
        smart.passed = Some(!smart.warnings.iter().any(|it| it.is_failure()));
    }
    let figures = &mut smart.figures;
    let bytes = |at| number(log, at).map(|units| units.saturating_mul(512_000));
    figures.available_spare_percent = number(log, "/available_spare");
    figures.available_spare_threshold_percent = number(log, "/available_spare_threshold");
    figures.percentage_used = number(log, "/percentage_used");
    figures.media_errors = number(log, "/media_errors");
    figures.unsafe_shutdowns = number(log, "/unsafe_shutdowns");
    figures.power_on_hours = number(log, "/power_on_hours");
    figures.bytes_read = bytes("/data_units_read");
    figures.bytes_written = bytes("/data_units_written");
}

fn number(value: &Value, at: &str) -> Option<u64> {
    value.pointer(at)?.as_u64()
}

fn text(value: &Value, at: &str) -> String {
    printable(value.pointer(at).and_then(Value::as_str).unwrap_or_default())
}

fn first_text(value: &Value, places: &[&str]) -> String {
    let texts = places.iter().map(|at| text(value, at));
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attribute(id: u64, name: &str, value: u64, thresh: u64, raw: u64) -> Value {
        json!({
            "id": id, "name": name, "value": value, "worst": value, "thresh": thresh, "when_failed": "",
            "flags": { "value": 50, "string": "-O--CK ", "prefailure": false, "updated_online": true,
                "performance": false, "error_rate": false, "event_count": true, "auto_keep": true },
            "raw": { "value": raw, "string": raw.to_string() }
        })
    }

    fn ata(passed: bool, table: &[Value]) -> Value {
        json!({
            "json_format_version": [1, 0],
            "smartctl": { "version": [7, 3], "svn_revision": "5338", "exit_status": 0,
                "argv": ["smartctl", "--json", "/dev/sda"] },
            "device": { "name": "/dev/sda", "info_name": "/dev/sda [SAT]", "type": "sat", "protocol": "ATA" },
            "model_family": "Samsung based SSDs", "model_name": "Samsung SSD 860 EVO 1TB",
            "serial_number": "S3Z8NB0K", "firmware_version": "RVT02B6Q",
            "user_capacity": { "blocks": 1_953_525_168_u64, "bytes": 1_000_204_886_016_u64 },
            "logical_block_size": 512, "physical_block_size": 512, "rotation_rate": 0,
            "smart_support": { "available": true, "enabled": true },
            "smart_status": { "passed": passed },
            "ata_smart_attributes": { "revision": 1, "table": table },
            "power_on_time": { "hours": 9120 }, "power_cycle_count": 40, "temperature": { "current": 31 }
        })
    }

    fn parsed(value: &Value) -> Option<Smart> {
        parse(&serde_json::to_vec(value).unwrap())
    }

    #[test]
    fn a_sata_ssd_has_its_wear_from_its_attributes() {
        let table = [
            attribute(5, "Reallocated_Sector_Ct", 100, 10, 2),
            attribute(177, "Wear_Leveling_Count", 93, 0, 84),
            attribute(187, "Reported_Uncorrect", 100, 0, 1),
            attribute(241, "Total_LBAs_Written", 99, 0, 2_000_000),
            attribute(242, "Total_LBAs_Read", 99, 0, 1_000_000),
        ];
        let smart = parsed(&ata(true, &table)).unwrap();
        assert_eq!(
            (smart.protocol.as_str(), smart.model.as_str(), smart.serial.as_str()),
            ("ata", "Samsung SSD 860 EVO 1TB", "S3Z8NB0K")
        );
        assert_eq!((smart.passed, smart.warnings.len()), (Some(true), 0));
        let expected = KnownFigures {
            percentage_used: Some(7),
            temperature_celsius: Some(31),
            media_errors: Some(1),
            reallocated_sectors: Some(2),
            power_on_hours: Some(9120),
            bytes_read: Some(512_000_000),
            bytes_written: Some(1_024_000_000),
            ..KnownFigures::default()
        };
        assert_eq!(smart.figures, expected);
    }

    #[test]
    fn a_disk_has_its_sectors_and_what_others_call_by_these_numbers_is_no_wear() {
        let table = [
            attribute(5, "Reallocated_Sector_Ct", 96, 36, 160),
            attribute(177, "Unknown_Attribute", 1, 0, 7),
            attribute(187, "Reported_Uncorrect", 1, 0, 0x0003_0000_0002),
            attribute(197, "Current_Pending_Sector", 100, 0, 8),
            attribute(233, "SandForce_Internal", 0, 0, 1234),
        ];
        let smart = parsed(&ata(false, &table)).unwrap();
        assert_eq!((smart.passed, smart.figures.percentage_used), (Some(false), None));
        let figures = smart.figures;
        assert_eq!((figures.pending_sectors, figures.reallocated_sectors), (Some(8), Some(160)));
        assert_eq!((figures.media_errors, figures.bytes_written), (Some(2), None));
    }

    #[test]
    fn the_drives_own_statistics_count_before_attributes() {
        let table = [
            attribute(202, "Percent_Lifetime_Remain", 90, 1, 10),
            attribute(232, "Available_Reservd_Space", 99, 10, 0),
            attribute(225, "Host_Writes_32MiB", 100, 0, 100),
        ];
        let mut value = ata(true, &table);
        let figures = parsed(&value).unwrap().figures;
        assert_eq!((figures.percentage_used, figures.bytes_written), (Some(10), Some(3200 * MIB)));
        assert_eq!(
            (figures.available_spare_percent, figures.available_spare_threshold_percent),
            (Some(99), Some(10))
        );
        let flags = json!({ "value": 192, "string": "V---", "valid": true, "normalized": false });
        value["ata_device_statistics"] = json!({ "pages": [{
            "number": 7, "name": "Solid State Device Statistics", "revision": 1, "table": [{
                "offset": 8, "name": "Percentage Used Endurance Indicator", "size": 1, "value": 12,
                "flags": flags }] }] });
        assert_eq!(parsed(&value).unwrap().figures.percentage_used, Some(12));
        value["endurance_used"] = json!({ "current_percent": 13 });
        value["spare_available"] = json!({ "current_percent": 80, "threshold_percent": 5 });
        let figures = parsed(&value).unwrap().figures;
        assert_eq!(
            (figures.percentage_used, figures.available_spare_percent),
            (Some(13), Some(80))
        );
    }

    /// As smartctl 7.3 prints it; the counters are those of `-l error`.
    fn sas() -> Value {
        let log = |uncorrected: u64| {
            json!({ "errors_corrected_by_eccfast": 0, "errors_corrected_by_eccdelayed": 3,
                "errors_corrected_by_rereads_rewrites": 0, "total_errors_corrected": 3,
                "correction_algorithm_invocations": 0, "gigabytes_processed": "12345.678",
                "total_uncorrected_errors": uncorrected })
        };
        json!({
            "json_format_version": [1, 0], "smartctl": { "version": [7, 3], "exit_status": 0 },
            "device": { "name": "/dev/sdb", "info_name": "/dev/sdb", "type": "scsi", "protocol": "SCSI" },
            "scsi_vendor": "SEAGATE", "scsi_product": "ST8000NM0075",
            "scsi_model_name": "SEAGATE ST8000NM0075", "scsi_revision": "E002",
            "serial_number": "ZA11", "smart_status": { "passed": true },
            "temperature": { "current": 36, "drive_trip": 60 },
            "power_on_time": { "hours": 30_000, "minutes": 12 },
            "scsi_grown_defect_list": 4,
            "scsi_error_counter_log": { "read": log(1), "write": log(0), "verify": log(2) }
        })
    }

    #[test]
    fn a_sas_drive_has_its_defects_and_the_errors_of_its_counters() {
        let smart = parsed(&sas()).unwrap();
        assert_eq!(
            (smart.model.as_str(), smart.firmware.as_str()),
            ("SEAGATE ST8000NM0075", "E002")
        );
        let expected = KnownFigures {
            temperature_celsius: Some(36),
            temperature_warning_celsius: Some(60),
            power_on_hours: Some(30_000),
            reallocated_sectors: Some(4),
            media_errors: Some(3),
            ..KnownFigures::default()
        };
        assert_eq!((smart.passed, smart.figures), (Some(true), expected));
    }

    #[test]
    fn an_nvme_drive_that_only_smartctl_reaches_has_its_log() {
        let value = json!({
            "device": { "type": "sntjmicron", "protocol": "NVMe" },
            "model_name": "Fast Drive", "smart_status": { "passed": false, "nvme": { "value": 9 } },
            "temperature": { "current": 50 },
            "nvme_smart_health_information_log": { "critical_warning": 9, "temperature": 50,
                "available_spare": 4, "available_spare_threshold": 10, "percentage_used": 101,
                "data_units_read": 3, "data_units_written": 5, "unsafe_shutdowns": 2, "media_errors": 1,
                "power_on_hours": 77 }
        });
        let smart = parsed(&value).unwrap();
        assert_eq!(smart.warnings, [SmartWarning::SpareLow, SmartWarning::ReadOnly]);
        assert_eq!((smart.passed, smart.figures.percentage_used), (Some(false), Some(101)));
        assert_eq!(smart.figures.bytes_written, Some(2_560_000));
    }

    #[test]
    fn a_drive_that_sleeps_or_has_no_smart_says_nothing() {
        // As smartctl 7.3 prints it of an emulated SCSI disk, and of one that sleeps.
        let virtual_disk = json!({
            "device": { "name": "/dev/sda", "type": "scsi", "protocol": "SCSI" },
            "scsi_vendor": "QEMU", "scsi_model_name": "QEMU QEMU HARDDISK", "serial_number": "S1",
            "logical_block_size": 512, "smart_support": { "available": false },
            "temperature": { "current": 0 }, "scsi_temperature": { "drive_trip": 0 }
        });
        let asleep = json!({
            "smartctl": { "exit_status": 2, "messages": [
                { "string": "Device is in STANDBY mode, exit(2)", "severity": "information" }] },
            "device": { "name": "/dev/sda", "type": "sat", "protocol": "ATA" }
        });
        for value in [virtual_disk, asleep, json!({}), json!([1]), json!(null), json!("x")] {
            assert_eq!(parsed(&value), None, "{value}");
        }
    }

    #[test]
    fn broken_and_partial_output_is_harmless() {
        let whole = serde_json::to_vec(&sas()).unwrap();
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "{end}");
        }
        assert_eq!(parse(b"\xff\xfe{"), None);
        let odd = json!({
            "device": 7, "serial_number": ["x"], "smart_status": { "passed": true },
            "temperature": { "current": -5 }, "power_on_time": "long",
            "ata_smart_attributes": { "table": [1, null, { "id": "5" }, { "id": 5, "raw": [] },
                { "id": 5, "name": "Reallocated_Sector_Ct", "raw": { "value": "many" } }] },
            "ata_device_statistics": { "pages": [null, { "table": { "a": 1 } }] },
            "nvme_smart_health_information_log": []
        });
        let smart = parsed(&odd).unwrap();
        assert_eq!((smart.passed, smart.figures), (Some(true), KnownFigures::default()));
    }
}
