//! The table a twin ends in: published product, published hardware, twin hardware, Voltier.

use serde::Serialize;
use voltier_results::table::{figure, render};

use super::calibration::Calibration;

/// The verdict on a row: Voltier's part of its hardware against the product's part of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More than the product's part.
    Won,
    /// Less than the product's part, whatever the reason.
    Lost,
    /// The parts differ by less than the models are off.
    Indistinguishable,
    /// For comparison only.
    Shown,
}

impl Verdict {
    /// The verdict of two parts, with models that are off by `error` (a share) at most.
    pub fn of(ratio: f64, published_ratio: f64, error: f64) -> Verdict {
        let difference = ratio / published_ratio - 1.0;
        match difference {
            d if d.abs() <= error => Verdict::Indistinguishable,
            d if d > 0.0 => Verdict::Won,
            _ => Verdict::Lost,
        }
    }
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
    /// A row that is held to the product's part of its hardware, with models that are off by `error`.
    pub fn new(case: String, unit: &'static str, figures: Figures, error: f64) -> Self {
        let Figures { published, hardware, twin_hardware, voltier } = figures;
        let (ratio, published_ratio) = (voltier / twin_hardware, published / hardware);
        let verdict = Verdict::of(ratio, published_ratio, error);
        Self {
            case,
            unit,
            published,
            hardware,
            twin_hardware,
            voltier,
            ratio,
            published_ratio,
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
    headline: String,
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
            headline: self.headline(),
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
            "{}\n{}\nThis is a simulation: Voltier's engine on modelled drives in virtual time, \
             without the processor's share.\n{}\n\n",
            self.title,
            self.headline(),
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
        text
    }

    /// The verdicts, counted.
    pub fn headline(&self) -> String {
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let shown = count(Verdict::Shown);
        let judged = self.rows.len() - shown;
        if judged == 0 {
            return format!("{shown} rows are for comparison only");
        }
        let beside = if shown == 0 { String::new() } else { format!("; {shown} shown beside") };
        format!(
            "won {}, lost {}, indistinguishable {} of {judged} (differences below the calibration \
             error){beside}",
            count(Verdict::Won),
            count(Verdict::Lost),
            count(Verdict::Indistinguishable),
        )
    }
}

fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn cells(row: &Row) -> Vec<String> {
    let verdict = match row.verdict {
        Verdict::Won => "won",
        Verdict::Lost => "LOST",
        Verdict::Indistinguishable => "indistinguishable",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_win_is_doubted_as_a_loss_is() {
        for (ratio, verdict) in [
            (1.004, Verdict::Indistinguishable),
            (0.97, Verdict::Indistinguishable),
            (1.04, Verdict::Won),
            (0.96, Verdict::Lost),
        ] {
            assert_eq!(Verdict::of(ratio, 1.0, 0.033), verdict, "{ratio}");
        }
        // A bound of what is possible excuses nobody.
        let figures =
            Figures { published: 35.0, hardware: 100.0, twin_hardware: 100.0, voltier: 26.5 };
        let mut row = Row::new("4k".to_owned(), "IOPS", figures, 0.029);
        row.bound = Some(0.265);
        assert_eq!(row.verdict, Verdict::Lost);
        let rows = vec![row.clone(), row.shown()];
        let report = Report {
            title: "a twin".to_owned(),
            rows,
            calibration: Calibration::default(),
            notes: Vec::new(),
        };
        assert!(report.headline().starts_with("won 0, lost 1, indistinguishable 0 of 1"));
        assert!(report.text().contains("LOST"), "{}", report.text());
    }
}
