//! The figures of a drive's health, each declared once; a drive knows some of them.

use std::cell::RefCell;

use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Map, Value};
use voltier_block::{Figure, Figures, Unit, figures};

figures! {
    /// What a drive says of itself, in numbers. `SmartFigures<Option<u64>>` has those that a drive knows.
    pub struct SmartFigures {
        /// How much of the drive's life is used, in percent of what its maker expects; it may go beyond 100.
        percentage_used: Figure::gauge(Unit::Percent),
        /// How much of the spare blocks is left, in percent.
        available_spare_percent: Figure::gauge(Unit::Percent),
        /// The drive warns when less spare than this is left, in percent.
        available_spare_threshold_percent: Figure::gauge(Unit::Percent),
        /// Temperature in degrees Celsius; 0 when it is below.
        temperature_celsius: Figure::gauge(Unit::Celsius),
        /// The temperature from which on the drive counts itself as too hot, in degrees Celsius.
        temperature_warning_celsius: Figure::gauge(Unit::Celsius),
        /// Errors that the drive could not correct: data that it did not give back.
        media_errors: Figure::counter(Unit::Things),
        /// How many of these came since the daemon asked first.
        media_errors_new: Figure::counter(Unit::Things),
        /// Sectors that the drive could not read, and replaces when they are written.
        pending_sectors: Figure::gauge(Unit::Things),
        /// Sectors that the drive has replaced.
        reallocated_sectors: Figure::counter(Unit::Things),
        /// How often power went without a word before.
        unsafe_shutdowns: Figure::counter(Unit::Things),
        /// Hours of work.
        power_on_hours: Figure::counter(Unit::Hours),
        /// Bytes that hosts have read.
        bytes_read: Figure::counter(Unit::Bytes),
        /// Bytes that hosts have written.
        bytes_written: Figure::counter(Unit::Bytes),
    }
}

/// The figures that a drive knows.
pub type KnownFigures = SmartFigures<Option<u64>>;

impl KnownFigures {
    /// Those that are known, with the facts about each.
    pub fn known(&self) -> impl Iterator<Item = (&'static Figure, u64)> {
        let values = RefCell::new(Vec::new());
        self.map(|value| values.borrow_mut().push(*value));
        let figures = SmartFigures::<u64>::ALL.iter().zip(values.into_inner());
        figures.filter_map(|(figure, value)| Some((figure, value?)))
    }
}

pub(super) fn serialize<S: Serializer>(figures: &KnownFigures, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.known().map(|(figure, value)| (figure.name, value)))
}

/// A figure that is not there, or is no number, is not known.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KnownFigures, D::Error> {
    let object: Map<String, Value> = Map::deserialize(from)?;
    let facts = RefCell::new(SmartFigures::<u64>::ALL.iter());
    Ok(SmartFigures::<u64>::default().map(|_| {
        let figure = facts.borrow_mut().next()?;
        object.get(figure.name).and_then(Value::as_u64)
    }))
}
