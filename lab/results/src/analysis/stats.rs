//! Means, spreads and straight lines.

use serde::Serialize;

/// Mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The figure of each repeat, and the figure of all repeats together.
///
/// Of a rate, or a mean, the figure of all is the mean. Of a percentile it is the percentile of the
/// requests of all repeats. The distance of the repeats from that percentile tells its error (the
/// method of sectioning).
#[derive(Clone, Debug, PartialEq)]
pub struct Repeats {
    /// The figure of each repeat.
    pub values: Vec<f64>,
    /// The figure of all repeats together.
    pub whole: f64,
}

impl Repeats {
    /// Repeats whose figure together is their mean; `None` of nothing.
    pub fn of_mean(values: Vec<f64>) -> Option<Repeats> {
        let whole = mean(&values)?;
        Some(Repeats { values, whole })
    }

    /// Standard deviation of a repeat from the figure of all (n - 1); `None` below two repeats.
    pub fn deviation(&self) -> Option<f64> {
        if self.values.len() < 2 {
            return None;
        }
        let squares: f64 = self.values.iter().map(|value| (value - self.whole).powi(2)).sum();
        Some((squares / (self.values.len() - 1) as f64).sqrt())
    }

    /// The figure of all with its 95 % interval.
    pub fn estimate(&self) -> Estimate {
        let count = self.values.len();
        let deviation = self.deviation();
        let half = deviation.map(|s| t_95(count as f64 - 1.0) * s / (count as f64).sqrt());
        Estimate {
            count,
            value: self.whole,
            variation: deviation.filter(|_| self.whole != 0.0).map(|s| s / self.whole.abs()),
            interval: half.map(|half| (self.whole - half, self.whole + half)),
        }
    }
}

/// The middle value; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// A straight line through points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Rise for each step of x.
    pub slope: f64,
    /// Value at x = 0.
    pub intercept: f64,
    /// Pearson's correlation coefficient; `None` when all y are the same.
    pub correlation: Option<f64>,
}

/// The line of least squares; `None` with fewer than two distinct x.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let sum = |of: fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum()
    };
    let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
    if points.len() < 2 || xx <= 0.0 {
        return None;
    }
    let slope = xy / xx;
    let correlation = (yy > 0.0).then(|| xy / (xx * yy).sqrt());
    Some(Line { slope, intercept: mean_y - slope * mean_x, correlation })
}

/// Student's t at 97.5 % for 1 to 30 degrees of freedom.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Student's t for a two-sided interval of 95 %; a fraction of a degree counts as none.
pub fn t_95(degrees: f64) -> f64 {
    let whole = degrees.max(1.0).floor() as usize;
    // Beyond the table the first term of the expansion is exact to three digits.
    T_975.get(whole - 1).copied().unwrap_or(1.960 + 2.372 / whole as f64)
}

/// A figure of repeats with what is known of its error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Number of repeats.
    pub count: usize,
    /// The mean of the repeats; of a percentile that of the requests of all repeats together.
    pub value: f64,
    /// Coefficient of variation: standard deviation over the value. `None` for one repeat.
    pub variation: Option<f64>,
    /// 95 % interval of the value, by Student's t. `None` for one repeat.
    pub interval: Option<(f64, f64)>,
}

/// The mean of repeated measurements with its 95 % interval; `None` of nothing.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    Repeats::of_mean(values.to_vec()).map(|repeats| repeats.estimate())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_mean_is_students() {
        let five = estimate(&[10.0, 12.0, 11.0, 13.0, 9.0]).unwrap();
        let (low, high) = five.interval.unwrap();
        // s = 1.5811, t(4) = 2.776: 11 +- 1.963
        assert!((five.value - 11.0).abs() < 1e-12);
        assert!((low - 9.037).abs() < 1e-3 && (high - 12.963).abs() < 1e-3);
        assert_eq!(estimate(&[3.0]).unwrap().interval, None);
        assert_eq!(estimate(&[]), None);
        assert!((t_95(1000.0) - 1.962).abs() < 1e-3);
    }

    #[test]
    fn a_line_through_a_line_is_that_line() {
        let fit = line(&[(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]).unwrap();
        assert!((fit.slope - 2.0).abs() < 1e-12 && (fit.intercept - 3.0).abs() < 1e-12);
        assert!((fit.correlation.unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(line(&[(1.0, 1.0), (2.0, 1.0)]).unwrap().correlation, None);
        assert_eq!(line(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
