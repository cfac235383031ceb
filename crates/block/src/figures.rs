//! Figures: what the data path counts and measures, each declared once.
//!
//! A group of figures is a struct of numbers that `figures!` declares with the facts about each of them. The data
//! path counts in such a struct, a status carries it upwards whole, and whoever shows it (JSON, the table of
//! `show`, the guide) goes by the facts. Nobody copies a figure from one struct to another.

/// What a figure tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// Grows from 0 on.
    Counter,
    /// What is true now.
    Gauge,
}

impl FigureKind {
    /// The word of the guide.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What a figure is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things; the name of the figure says which.
    Things,
    /// Bytes.
    Bytes,
    /// Time: counted in nanoseconds, shown in microseconds.
    Time,
    /// Seconds.
    Seconds,
    /// Hours.
    Hours,
    /// Hundredths.
    Percent,
    /// Degrees Celsius.
    Celsius,
}

impl Unit {
    /// How many of those that are counted make one that is shown.
    pub const fn counted_per_shown(self) -> u64 {
        match self {
            Self::Things
            | Self::Bytes
            | Self::Seconds
            | Self::Hours
            | Self::Percent
            | Self::Celsius => 1,
            Self::Time => 1000,
        }
    }
}

/// The row of a figure in the table of `show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureRow {
    /// The word on the left.
    pub label: &'static str,
    /// What is on the right, with `{}` for the number.
    pub text: &'static str,
    /// Whether there is no row while the figure is 0.
    pub if_any: bool,
}

/// The facts about a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name in JSON.
    pub name: &'static str,
    /// What the figure is, in a sentence.
    pub help: &'static str,
    /// What it tells.
    pub kind: FigureKind,
    /// What it is in.
    pub unit: Unit,
    /// The row of its own; without one, whoever writes the table may put it beside others.
    pub row: Option<FigureRow>,
    /// Whether users see it at all.
    pub is_listed: bool,
}

impl Figure {
    /// A figure that only grows.
    pub const fn counter(unit: Unit) -> Self {
        let (name, help) = ("", "");
        Self { name, help, kind: FigureKind::Counter, unit, row: None, is_listed: true }
    }

    /// A figure that says what is now.
    pub const fn gauge(unit: Unit) -> Self {
        Self { kind: FigureKind::Gauge, ..Self::counter(unit) }
    }

    /// Has another name in JSON than in code.
    pub const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Has a row in the table of `show`; `{}` in `text` is the number.
    pub const fn row(self, label: &'static str, text: &'static str) -> Self {
        Self { row: Some(FigureRow { label, text, if_any: false }), ..self }
    }

    /// Has such a row unless it is 0.
    pub const fn row_if_any(self, label: &'static str, text: &'static str) -> Self {
        Self { row: Some(FigureRow { label, text, if_any: true }), ..self }
    }

    /// Is for tests, and not shown.
    pub const fn unlisted(self) -> Self {
        Self { is_listed: false, ..self }
    }

    /// With the words of the declaration: for `figures!`.
    pub const fn declared(self, field: &'static str, help: &'static str) -> Self {
        let name = if self.name.is_empty() { field } else { self.name };
        Self { name, help: help.trim_ascii(), ..self }
    }
}

/// A group of figures.
pub trait Figures: Copy + Default + 'static {
    /// The facts about each, in the order of the values.
    const ALL: &'static [Figure];

    /// The numbers, as they are counted.
    fn values(&self) -> Vec<u64>;

    /// The same, to be changed.
    fn values_mut(&mut self) -> Vec<&mut u64>;

    /// The figures that users see, with their numbers as they are counted.
    fn listed(&self) -> impl Iterator<Item = (&'static Figure, u64)> {
        Self::ALL.iter().zip(self.values()).filter(|(figure, _)| figure.is_listed)
    }

    /// Adds all figures of another group of the same kind.
    fn add(&mut self, other: &Self) {
        for (own, other) in self.values_mut().into_iter().zip(other.values()) {
            *own += other;
        }
    }
}

/// Declares a group of figures: each with its help (the doc comment), its name, and a [`Figure`].
///
/// The struct has plain numbers (`u64`) as a snapshot; `NAME<Cell<u64>>` is one that counts, and `map` makes a
/// snapshot of it. [`Figures`] is there for the snapshot.
#[macro_export]
macro_rules! figures {
    ($(#[$about:meta])* $vis:vis struct $group:ident {
        $($(#[doc = $help:literal])+ $field:ident: $figure:expr,)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $group<Of = u64> {
            $($(#[doc = $help])+ $vis $field: Of,)+
        }

        impl<Of> $group<Of> {
            /// The same group with another kind of numbers.
            $vis fn map<To>(&self, number: impl Fn(&Of) -> To) -> $group<To> {
                $group { $($field: number(&self.$field),)+ }
            }
        }

        impl $crate::Figures for $group {
            const ALL: &'static [$crate::Figure] =
                &[$($figure.declared(stringify!($field), concat!($($help),+)),)+];

            fn values(&self) -> Vec<u64> {
                vec![$(self.$field,)+]
            }

            fn values_mut(&mut self) -> Vec<&mut u64> {
                vec![$(&mut self.$field,)+]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    figures! {
        /// For the test.
        struct Weather {
            /// Drops of rain,
            /// counted one by one.
            drops: Figure::counter(Unit::Things).row_if_any("rain", "{} drops"),
            /// How long the sun shone.
            sun_ns: Figure::counter(Unit::Time).named("sun_us"),
            /// Bytes of forecasts.
            forecast_bytes: Figure::gauge(Unit::Bytes).unlisted(),
        }
    }

    #[test]
    fn a_declaration_gives_the_facts_and_the_numbers() {
        let counting = Weather::<Cell<u64>>::default();
        counting.drops.set(3);
        counting.forecast_bytes.set(9);
        let mut now = counting.map(Cell::get);
        now.add(&Weather { drops: 1, sun_ns: 2000, forecast_bytes: 0 });
        assert_eq!(now, Weather { drops: 4, sun_ns: 2000, forecast_bytes: 9 });
        let listed: Vec<_> = now.listed().map(|(figure, value)| (figure.name, value)).collect();
        assert_eq!(listed, [("drops", 4), ("sun_us", 2000)]);
        let [drops, sun, forecasts] = Weather::ALL else { panic!("three are declared") };
        assert_eq!(drops.help, "Drops of rain, counted one by one.");
        assert!(drops.row.is_some_and(|row| row.if_any && row.text == "{} drops"));
        assert_eq!((drops.kind, forecasts.kind), (FigureKind::Counter, FigureKind::Gauge));
        assert_eq!(sun.unit.counted_per_shown(), 1000);
    }
}
