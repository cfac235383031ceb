//! Groups of figures in JSON: for `#[serde(with = "figures")]`, also with `flatten`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Map, Value};
use voltier_block::{Figure, Figures};

/// A figure of a status, with its number as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct ShownFigure {
    /// The object in JSON that has it; empty for the status itself.
    pub group: &'static str,
    /// The facts about it.
    pub figure: &'static Figure,
    /// The number.
    pub value: u64,
}

/// The figures of a group that users see.
pub fn of_group(group: &'static str, figures: &impl Figures) -> impl Iterator<Item = ShownFigure> {
    figures.listed().map(move |(figure, value)| ShownFigure { group, figure, value })
}

pub(crate) fn serialize<S: Serializer>(figures: &impl Figures, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(
        figures
            .listed()
            .map(|(figure, value)| (figure.name, value / figure.unit.counted_per_shown())),
    )
}

/// A figure that is not there is 0: an older daemon does not have it.
pub(crate) fn deserialize<'de, F: Figures, D: Deserializer<'de>>(from: D) -> Result<F, D::Error> {
    let object = Map::deserialize(from)?;
    let mut figures = F::default();
    for (figure, value) in F::ALL.iter().zip(figures.values_mut()) {
        let Some(shown) = object.get(figure.name).filter(|_| figure.is_listed) else { continue };
        let shown = shown.as_u64().ok_or_else(|| no_number::<D::Error>(figure.name, shown))?;
        *value = shown.saturating_mul(figure.unit.counted_per_shown());
    }
    Ok(figures)
}

fn no_number<E: Error>(name: &str, value: &Value) -> E {
    E::custom(format_args!("{name} is {value}, not a number of 0 or more"))
}
