//! How near a modelled drive is to what was measured on the real one.

use voltier_block::KIB;
use voltier_drive::model::closed_loop;
use voltier_drive::model::{CalibrationRow, Profile, Workload};

/// One measured row beside what the model does.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Drive and load, for people.
    pub name: String,
    /// The load, where it is one on a drive alone.
    pub load: Option<Workload>,
    /// The measured rate; of drives in bytes per second.
    pub published: f64,
    /// The rate of the model.
    pub twin: f64,
}

impl Cell {
    /// The model above (or below) what was measured, as a share of it.
    pub fn error(&self) -> f64 {
        self.twin / self.published - 1.0
    }
}

/// All calibrated cells of a twin.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// The cells.
    pub cells: Vec<Cell>,
}

impl Calibration {
    /// Runs every row of these drives.
    pub fn of(profiles: &[&'static str]) -> Self {
        let profiles = profiles.iter().map(|name| Profile::find(name).expect("a profile"));
        let cells = profiles.flat_map(|profile| profile.rows.iter().map(|row| cell(profile, row)));
        Self { cells: cells.collect() }
    }

    /// The cell that is furthest off.
    pub fn worst(&self) -> Option<&Cell> {
        self.cells.iter().max_by(|one, other| one.error().abs().total_cmp(&other.error().abs()))
    }

    /// The largest error of any cell, as a share.
    pub fn error(&self) -> f64 {
        self.worst().map_or(0.0, |cell| cell.error().abs())
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Some(worst) = self.worst() else { return "nothing is calibrated".to_owned() };
        let (error, count) = (worst.error() * 100.0, self.cells.len());
        format!("calibration error {:.1} %: worst of {count} cells, {}", error.abs(), worst.name)
    }
}

fn cell(profile: &'static Profile, row: &CalibrationRow) -> Cell {
    let load = &row.workload;
    let run_ns = closed_loop::steady_run_ns(profile, load, row.bytes_per_s);
    let twin = closed_loop::run(profile, load, 0, run_ns).bytes_per_s;
    let order = if load.sequential { "sequential" } else { "random" };
    let name = format!(
        "{}, {order} {} KiB, {} % reads, {} outstanding",
        profile.name,
        load.block_bytes / KIB,
        load.read_percent,
        load.jobs * load.depth
    );
    Cell { name, load: Some(*load), published: row.bytes_per_s, twin }
}
