//! Gunther's universal scalability law:
//! X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1)).
//!
//! N / X is linear in the unknowns, so the fit is a least-squares problem of three coefficients,
//! none of them negative, with relative errors.

use serde::Serialize;

/// More work for each unit of load than at the step before, beyond this, is not a queue.
const SUPER_LINEAR: f64 = 1.05;

/// Below this many points three coefficients say nothing.
const POINTS_MIN: usize = 6;

/// A fit that misses a point by more than this is not shown as a model.
const ERROR_MAX: f64 = 0.15;

/// The verdict of the law on a load curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Usl {
    /// The law fits.
    Fitted {
        /// Throughput of one unit of load.
        lambda: f64,
        /// Share of the work that is serial (contention).
        sigma: f64,
        /// Cost of keeping parties consistent (coherency).
        kappa: f64,
        /// Load of the greatest throughput; `None` when more load never harms.
        peak: Option<f64>,
        /// Largest relative error of a point.
        error: f64,
    },
    /// The law was not fitted, or does not fit.
    Refused {
        /// Why, in words.
        why: String,
    },
}

/// Fits the law to load and throughput, in the order of the load.
pub fn fit(points: &[(f64, f64)]) -> Usl {
    let refused = |why: &str| Usl::Refused { why: why.to_owned() };
    if points.len() < POINTS_MIN {
        return refused("fewer than 6 loads");
    }
    if points.iter().any(|(n, x)| !(n.is_finite() && x.is_finite() && *n >= 1.0 && *x > 0.0)) {
        return refused("a load without a figure");
    }
    let grows = |pair: &[(f64, f64)]| {
        pair[1].1 / pair[0].1 > SUPER_LINEAR * pair[1].0 / pair[0].0 && pair[1].0 > pair[0].0
    };
    if points.windows(2).any(grows) {
        return refused("super-linear: warm-up, caching or power states");
    }
    let Some([a, b, c]) = best_coefficients(points) else {
        return refused("no coefficients fit");
    };
    let model = |n: f64| n / (a + b * (n - 1.0) + c * n * (n - 1.0));
    let error = points.iter().map(|(n, x)| (model(*n) / x - 1.0).abs()).fold(0.0, f64::max);
    if error > ERROR_MAX {
        return refused(&format!("a point is missed by {:.0} %", 100.0 * error));
    }
    let (sigma, kappa) = (b / a, c / a);
    let peak = (kappa > 0.0 && sigma < 1.0).then(|| ((1.0 - sigma) / kappa).sqrt().floor());
    Usl::Fitted { lambda: 1.0 / a, sigma, kappa, peak, error }
}

/// N / X = a + b (N - 1) + c N (N - 1). The least relative error with b and c not negative is found among
/// the four choices of which of them is zero.
fn best_coefficients(points: &[(f64, f64)]) -> Option<[f64; 3]> {
    let choices = [[true, true], [true, false], [false, true], [false, false]];
    let solved = choices.into_iter().filter_map(|[with_b, with_c]| {
        let row = |n: f64| {
            let b = if with_b { n - 1.0 } else { 0.0 };
            let c = if with_c { n * (n - 1.0) } else { 0.0 };
            [1.0, b, c]
        };
        let coefficients = solve(points, row, [true, with_b, with_c])?;
        let [a, b, c] = coefficients;
        let error: f64 = points
            .iter()
            .map(|(n, x)| {
                let [r0, r1, r2] = row(*n);
                ((a * r0 + b * r1 + c * r2) * x / n - 1.0).powi(2)
            })
            .sum();
        (a > 0.0 && b >= 0.0 && c >= 0.0).then_some((error, coefficients))
    });
    solved.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, coefficients)| coefficients)
}

/// Normal equations by Gauss elimination; an unused coefficient is zero.
fn solve(
    points: &[(f64, f64)],
    row: impl Fn(f64) -> [f64; 3],
    used: [bool; 3],
) -> Option<[f64; 3]> {
    let mut m = [[0.0; 4]; 3];
    for (n, x) in points {
        let weight = x / n;
        let r = row(*n).map(|value| value * weight);
        for i in 0..3 {
            for j in 0..3 {
                m[i][j] += r[i] * r[j];
            }
            m[i][3] += r[i];
        }
    }
    for i in 0..3 {
        if !used[i] {
            m[i] = [0.0; 4];
            m[i][i] = 1.0;
        }
    }
    for i in 0..3 {
        let pivot = (i..3).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        let lead = m[i];
        if lead[i].abs() < 1e-300 {
            return None;
        }
        for (k, row) in m.iter_mut().enumerate() {
            if k != i {
                let factor = row[i] / lead[i];
                for (value, of_lead) in row.iter_mut().zip(lead) {
                    *value -= factor * of_lead;
                }
            }
        }
    }
    let solved = [m[0][3] / m[0][0], m[1][3] / m[1][1], m[2][3] / m[2][2]];
    solved.iter().all(|value| value.is_finite()).then_some(solved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(lambda: f64, sigma: f64, kappa: f64) -> Vec<(f64, f64)> {
        let loads = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        let x = |n: f64| lambda * n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0));
        loads.map(|n| (n, x(n))).to_vec()
    }

    #[test]
    fn the_law_finds_its_own_coefficients() {
        let Usl::Fitted { lambda, sigma, kappa, peak, error } = fit(&law(1000.0, 0.05, 0.001))
        else {
            panic!("refused")
        };
        assert!((lambda - 1000.0).abs() < 1e-6 && (sigma - 0.05).abs() < 1e-9);
        assert!((kappa - 0.001).abs() < 1e-9 && error < 1e-9);
        assert_eq!(peak, Some(30.0));
    }

    #[test]
    fn few_points_and_super_linear_steps_are_refused_in_words() {
        let Usl::Refused { why } = fit(&law(1000.0, 0.05, 0.001)[..5]) else { panic!("fitted") };
        assert!(why.contains('6'));
        let mut points = law(1000.0, 0.0, 0.0);
        points[1].1 *= 1.5;
        let Usl::Refused { why } = fit(&points) else { panic!("fitted") };
        assert!(why.starts_with("super-linear"), "{why}");
    }
}
