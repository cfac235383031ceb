//! Bound by bandwidth, by requests, or by latency: the cost model of a request over block sizes.
//!
//! 1 / IOPS(bs) = t0 + bs / B. B is the limit of bandwidth, 1 / t0 that of requests, and
//! bs* = B t0 the size at which one hands over to the other.

use serde::Serialize;

use super::series;
use crate::result::Run;

/// A model that misses a size by more is rejected.
pub const ERROR_MAX: f64 = 0.15;

/// A share of the cost below which a term is not there.
const INVISIBLE: f64 = 1e-9;

/// A limit counts as reached from this share on.
const REACHED: f64 = 0.90;

/// The limit of a ladder of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Bytes per second.
    Bandwidth,
    /// Requests per second.
    Iops,
    /// Both at once.
    Balanced,
    /// Too few requests in flight: raise the depth.
    Concurrency,
    /// Neither device limit: each has its share of the cost, or it lies elsewhere (processor,
    /// network, backend, tail).
    Neither,
}

/// The class of one measurement by its shares of the two limits; `below_knee` says whether the
/// load is below N*, where a load curve tells.
pub fn classify(of_bandwidth: f64, of_iops: f64, below_knee: Option<bool>) -> Bound {
    match (of_bandwidth >= REACHED, of_iops >= REACHED) {
        (true, true) => Bound::Balanced,
        (true, false) => Bound::Bandwidth,
        (false, true) => Bound::Iops,
        (false, false) if below_knee == Some(true) => Bound::Concurrency,
        (false, false) => Bound::Neither,
    }
}

/// The cost model of one ladder of block sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostModel {
    /// Cost of a request whatever its size.
    pub t0_ns: f64,
    /// Limit of bandwidth, bytes per second; `None` when size does not matter.
    pub bandwidth: Option<f64>,
    /// Limit of requests per second; `None` when only size matters.
    pub iops: Option<f64>,
    /// Size at which both cost the same; `None` when one of the limits is missing.
    pub crossover_bytes: Option<f64>,
    /// Relative error of each size, in the order of the ladder.
    pub errors: Vec<f64>,
    /// The largest, as a share.
    pub error: f64,
    /// Whether the model may be used: no size is missed by more than 15 %.
    pub is_accepted: bool,
}

/// Fits the model to block size and requests per second, weighted by relative error. `None` with
/// fewer than three sizes or a figure that is not positive.
pub fn fit(ladder: &[(f64, f64)]) -> Option<CostModel> {
    let usable = |(bs, x): &(f64, f64)| *bs > 0.0 && *x > 0.0 && (bs * x).is_finite();
    if ladder.len() < 3 || !ladder.iter().all(usable) {
        return None;
    }
    // Minimise the sum of (t0 IOPS + bs IOPS / B - 1)^2.
    let sum = |of: fn(f64, f64) -> f64| -> f64 { ladder.iter().map(|(b, x)| of(*x, b * x)).sum() };
    let (aa, ab, bb) = (sum(|a, _| a * a), sum(|a, b| a * b), sum(|_, b| b * b));
    let (a, b) = (sum(|a, _| a), sum(|_, b| b));
    let determinant = aa * bb - ab * ab;
    let mut t0 = (a * bb - b * ab) / determinant;
    let mut per_byte = (b * aa - a * ab) / determinant;
    // A negative cost means that the other one explains everything.
    if !t0.is_finite() || t0 < 0.0 {
        (t0, per_byte) = (0.0, b / bb);
    } else if per_byte < 0.0 {
        (t0, per_byte) = (a / aa, 0.0);
    }
    // A cost that no size of the ladder shows is the rounding of the fit.
    let largest = ladder.iter().map(|(size, _)| *size).fold(0.0, f64::max);
    if t0 < INVISIBLE * largest * per_byte {
        t0 = 0.0;
    } else if largest * per_byte < INVISIBLE * t0 {
        per_byte = 0.0;
    }
    let errors: Vec<f64> = ladder.iter().map(|(b, x)| (t0 + b * per_byte) * x - 1.0).collect();
    let error = errors.iter().map(|error| error.abs()).fold(0.0, f64::max);
    let bandwidth = (per_byte > 0.0).then(|| 1.0 / per_byte);
    let iops = (t0 > 0.0).then(|| 1.0 / t0);
    Some(CostModel {
        t0_ns: t0 * 1e9,
        bandwidth,
        iops,
        crossover_bytes: bandwidth.filter(|_| t0 > 0.0).map(|rate| rate * t0),
        errors,
        error,
        is_accepted: error <= ERROR_MAX,
    })
}

/// One size of a ladder, classed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeVerdict {
    /// The size.
    pub block_bytes: u64,
    /// Requests per second.
    pub iops: f64,
    /// Share of the limit of bandwidth.
    pub of_bandwidth: f64,
    /// Share of the limit of requests.
    pub of_iops: f64,
    /// The limit.
    pub bound: Bound,
}

/// A ladder of block sizes of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// The ladder in words, without the size.
    pub label: String,
    /// The model.
    pub model: CostModel,
    /// Each size. Against the model's limits where it is accepted, else against the best figures
    /// of the ladder.
    pub sizes: Vec<SizeVerdict>,
    /// Sizes between which the ladder changes its law, where the model is rejected.
    pub regime_change: Option<(u64, u64)>,
    /// The verdict in words.
    pub text: String,
}

/// Every ladder of a run: at least three block sizes of something that is otherwise the same.
pub fn of_run(run: &Run) -> Vec<BoundVerdict> {
    let groups = series::group(run, |axes| {
        (axes.block_bytes, axes.round, axes.pass) = (None, None, None);
    });
    let mut verdicts = Vec::new();
    for group in &groups {
        let mut ladder: Vec<(u64, Vec<f64>)> = Vec::new();
        for point in series::in_window(run, &group.points) {
            let found = point.axes.block_bytes.zip(series::rate(point));
            let Some((size, rate)) = found else { continue };
            match ladder.iter_mut().find(|(known, _)| *known == size) {
                Some((_, rates)) => rates.push(rate),
                None => ladder.push((size, vec![rate])),
            }
        }
        ladder.sort_by_key(|(size, _)| *size);
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let means: Vec<(u64, f64)> = ladder.iter().map(|(b, rates)| (*b, mean(rates))).collect();
        let pairs: Vec<(f64, f64)> = means.iter().map(|(b, x)| (*b as f64, *x)).collect();
        if let Some(model) = fit(&pairs) {
            verdicts.push(judge(&group.axes.target, group.label(), model, &means));
        }
    }
    verdicts
}

fn judge(target: &str, label: String, model: CostModel, ladder: &[(u64, f64)]) -> BoundVerdict {
    let best = |of: fn(u64, f64) -> f64| ladder.iter().map(|(b, x)| of(*b, *x)).fold(0.0, f64::max);
    let top = (best(|b, x| b as f64 * x), best(|_, x| x));
    let limits = match model.is_accepted {
        true => (model.bandwidth.unwrap_or(f64::INFINITY), model.iops.unwrap_or(f64::INFINITY)),
        false => top,
    };
    let size = |&(block_bytes, iops): &(u64, f64)| {
        let (of_bandwidth, of_iops) = (block_bytes as f64 * iops / limits.0, iops / limits.1);
        let bound = classify(of_bandwidth, of_iops, None);
        SizeVerdict { block_bytes, iops, of_bandwidth, of_iops, bound }
    };
    let regime_change = (!model.is_accepted).then(|| regime_change(&model, ladder)).flatten();
    let text = describe(&model, regime_change);
    let sizes = ladder.iter().map(size).collect();
    BoundVerdict { target: target.to_owned(), label, model, sizes, regime_change, text }
}

/// The neighbours between which the error of the model jumps most.
fn regime_change(model: &CostModel, ladder: &[(u64, f64)]) -> Option<(u64, u64)> {
    let jump = |i: &usize| (model.errors[i + 1] - model.errors[*i]).abs();
    let at = (0..ladder.len() - 1).max_by(|one, other| jump(one).total_cmp(&jump(other)))?;
    Some((ladder[at].0, ladder[at + 1].0))
}

fn describe(model: &CostModel, change: Option<(u64, u64)>) -> String {
    use crate::size::format_bytes;
    if !model.is_accepted {
        let change = change.map_or_else(String::new, |(below, above)| {
            let (below, above) = (format_bytes(below), format_bytes(above));
            format!(": regime change between {below} and {above}")
        });
        return format!("model rejected, a size is missed by {:.0} %{change}", 100.0 * model.error);
    }
    let megabytes = |rate: f64| format!("{:.0} MB/s", rate / 1e6);
    match (model.bandwidth, model.iops, model.crossover_bytes) {
        (Some(rate), Some(iops), Some(size)) => format!(
            "bandwidth-bound above {:.1} KiB ({}), IOPS-bound below ({iops:.0}/s)",
            size / 1024.0,
            megabytes(rate)
        ),
        (Some(rate), ..) => format!("bandwidth-bound at every size ({})", megabytes(rate)),
        (_, Some(iops), _) => format!("IOPS-bound at every size ({iops:.0}/s)"),
        _ => "no limit found".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_known_limits_is_judged_right() {
        let ladder: Vec<(f64, f64)> = [512.0, 4096.0, 16_384.0, 65_536.0, 1_048_576.0]
            .map(|bs: f64| (bs, 1.0 / (10e-6 + bs / 500e6)))
            .to_vec();
        let model = fit(&ladder).unwrap();
        assert!((model.t0_ns - 10_000.0).abs() < 1e-6 && model.error < 1e-9);
        assert!((model.bandwidth.unwrap() - 500e6).abs() < 1.0);
        assert!((model.crossover_bytes.unwrap() - 5000.0).abs() < 1e-3);
        let ladder: Vec<(u64, f64)> = ladder.iter().map(|(b, x)| (*b as u64, *x)).collect();
        let verdict = judge("x", String::new(), model, &ladder);
        let bounds: Vec<Bound> = verdict.sizes.iter().map(|size| size.bound).collect();
        let middle = Bound::Neither;
        assert_eq!(bounds, [Bound::Iops, middle, middle, Bound::Bandwidth, Bound::Bandwidth]);
        assert!(verdict.text.contains("above 4.9 KiB (500 MB/s)"), "{}", verdict.text);
    }

    #[test]
    fn classes_follow_the_two_shares_and_the_knee() {
        assert_eq!(classify(0.95, 0.2, None), Bound::Bandwidth);
        assert_eq!(classify(0.95, 0.95, None), Bound::Balanced);
        assert_eq!(classify(0.3, 0.91, Some(true)), Bound::Iops);
        assert_eq!(classify(0.3, 0.3, Some(true)), Bound::Concurrency);
        assert_eq!(classify(0.3, 0.3, Some(false)), Bound::Neither);
    }

    #[test]
    fn limits_that_do_not_exist_are_not_invented() {
        let flat = fit(&[(4096.0, 1e4), (8192.0, 1e4), (16_384.0, 1e4)]).unwrap();
        assert_eq!((flat.bandwidth, flat.crossover_bytes), (None, None));
        let wide = fit(&[(4096.0, 4e4), (8192.0, 2e4), (16_384.0, 1e4)]).unwrap();
        assert!(wide.iops.is_none_or(|iops| iops > 1e9), "{wide:?}");
        assert_eq!(fit(&[(4096.0, 1e4), (8192.0, 0.0), (16_384.0, 1e4)]), None);
        assert_eq!(fit(&[(4096.0, 1e4), (8192.0, 1e4)]), None);
    }
}
