//! The table a twin ends in: published product, published hardware, twin hardware, Voltier.

use serde::Serialize;
use voltier_results::table::{figure, render};

use super::calibration::Calibration;

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At least what the product makes of its hardware.
    Met,
    /// Less than that.
    Missed,
    /// The product is beyond what writing in place allows; Voltier, which does, is held to nothing.
    BeyondBound,
    /// For comparison only.
    Shown,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The question of the row.
    pub case: String,
    /// Of the four figures.
    pub unit: &'static str,
    /// The published product.
    pub published: f64,
    /// The published hardware without it.
    pub hardware: f64,
    /// The modelled hardware without Voltier.
    pub twin_hardware: f64,
    /// Voltier on the modelled hardware.
    pub voltier: f64,
    /// Voltier's part of the twin hardware.
    pub ratio: f64,
    /// The product's part of its hardware.
    pub published_ratio: f64,
    /// The share of the twin hardware that Voltier is to reach at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// The most that is possible of the twin hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// How parity and data are kept together; none where there is no parity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<&'static str>,
    /// The verdict on the row.
    pub verdict: Verdict,
    /// Figures beside: hit rates, passes, another consistency.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Row {
    /// A row that is held to the product's part of its hardware.
    pub fn new(case: String, unit: &'static str, figures: Figures) -> Self {
        let Figures { published, hardware, twin_hardware, voltier } = figures;
        let (ratio, published_ratio) = (voltier / twin_hardware, published / hardware);
        let verdict = if ratio >= published_ratio { Verdict::Met } else { Verdict::Missed };
        Self {
            case,
            unit,
            published,
            hardware,
            twin_hardware,
            voltier,
            ratio,
            published_ratio,
            aim: None,
            bound: None,
            consistency: None,
            verdict,
            note: String::new(),
        }
    }

    /// The same, held to nothing.
    #[must_use]
    pub fn shown(self) -> Self {
        Self { verdict: Verdict::Shown, ..self }
    }
}

/// The four figures of a row.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The published product.
    pub published: f64,
    /// The published hardware without it.
    pub hardware: f64,
    /// The modelled hardware without Voltier.
    pub twin_hardware: f64,
    /// Voltier on the modelled hardware.
    pub voltier: f64,
}

/// The report of a twin.
#[derive(Clone, Debug)]
pub struct Report {
    /// The title: whose test bed the twin models.
    pub title: String,
    /// The cases.
    pub rows: Vec<Row>,
    /// How near the models are.
    pub calibration: Calibration,
    /// Notes that a reader must know: scale, anomalies of the published figures.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    rows: &'a [Row],
    calibration_error: f64,
    calibration_worst: Option<&'a str>,
    simulation: bool,
    notes: &'a [String],
}

impl Report {
    /// As JSON.
    pub fn json(&self) -> String {
        let json = Json {
            rows: &self.rows,
            calibration_error: self.calibration.error(),
            calibration_worst: self.calibration.worst().map(|cell| cell.name.as_str()),
            simulation: true,
            notes: &self.notes,
        };
        serde_json::to_string_pretty(&json).expect("figures are JSON") + "\n"
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}\nThis is a simulation: Voltier's engine on modelled drives in virtual time, without \
             the processor's share.\n{}\n\n",
            self.title,
            self.calibration.line()
        );
        let headings = [
            "case",
            "unit",
            "published",
            "hardware",
            "part",
            "twin hw",
            "voltier",
            "part",
            "of published",
            "bound",
            "",
            "beside",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        text.push_str(&render(&headings, &rows));
        text.push('\n');
        for note in &self.notes {
            text.push_str(&format!("- {note}\n"));
        }
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        text.push_str(&format!(
            "met {}, missed {}, beyond the bound of writing in place {}, shown {}\n",
            count(Verdict::Met),
            count(Verdict::Missed),
            count(Verdict::BeyondBound),
            count(Verdict::Shown),
        ));
        text
    }
}

fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn cells(row: &Row) -> Vec<String> {
    let verdict = match row.verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::BeyondBound => "beyond bound",
        Verdict::Shown => "",
    };
    vec![
        row.case.clone(),
        row.unit.to_owned(),
        figure(row.published),
        figure(row.hardware),
        share(row.published_ratio),
        figure(row.twin_hardware),
        figure(row.voltier),
        share(row.ratio),
        share(row.ratio / row.published_ratio),
        row.bound.map_or_else(String::new, share),
        verdict.to_owned(),
        row.note.clone(),
    ]
}
