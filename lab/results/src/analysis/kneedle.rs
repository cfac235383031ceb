//! Kneedle: the point of greatest distance between a curve and its chord (Satopaa et al., "Finding
//! a 'Kneedle' in a Haystack", 2011), off line, without smoothing.

/// The way in which a rising curve bends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Rises and flattens: throughput over load.
    Concave,
    /// Flat, then rises: latency over load.
    Convex,
}

/// Index of the knee of a rising curve. `x` rises strictly; `sensitivity` is 1 in the paper.
/// `None` when the curve has no knee by this measure, or the input is not usable.
pub fn kneedle(x: &[f64], y: &[f64], curve: Curve, sensitivity: f64) -> Option<usize> {
    let n = x.len();
    let usable = x.iter().chain(y).all(|value| value.is_finite());
    if n < 3 || y.len() != n || !usable || x.windows(2).any(|pair| pair[1] <= pair[0]) {
        return None;
    }
    let (xs, ys) = (unit(x)?, unit(y)?);
    // A convex curve is turned by half a circle, and read from its other end.
    let distance: Vec<f64> = match curve {
        Curve::Concave => (0..n).map(|i| ys[i] - xs[i]).collect(),
        Curve::Convex => (0..n).rev().map(|i| (1.0 - ys[i]) - (1.0 - xs[i])).collect(),
    };
    let step = 1.0 / (n - 1) as f64;
    let found = first_crossing(&distance, sensitivity * step)?;
    Some(if curve == Curve::Concave { found } else { n - 1 - found })
}

/// The values moved and scaled to 0..=1; `None` when they are all the same.
fn unit(values: &[f64]) -> Option<Vec<f64>> {
    let low = values.iter().copied().fold(f64::MAX, f64::min);
    let high = values.iter().copied().fold(f64::MIN, f64::max);
    (high > low).then(|| values.iter().map(|value| (value - low) / (high - low)).collect())
}

/// The first maximum of the distance after which it falls by `drop` before it rises again.
fn first_crossing(distance: &[f64], drop: f64) -> Option<usize> {
    let n = distance.len();
    let mut armed = None;
    for i in 1..n - 1 {
        let (before, here, after) = (distance[i - 1], distance[i], distance[i + 1]);
        if here >= before && here >= after {
            armed = Some(i);
        } else if here <= before && here <= after {
            armed = None;
        }
        if let Some(maximum) = armed
            && after < distance[maximum] - drop
        {
            return Some(maximum);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f64; 10] = [0.0, 0.111, 0.222, 0.333, 0.444, 0.556, 0.667, 0.778, 0.889, 1.0];
    const Y: [f64; 10] = [-5.0, 0.263, 1.897, 2.692, 3.163, 3.475, 3.696, 3.861, 3.989, 4.091];

    #[test]
    fn the_figure_of_the_paper_has_its_knee() {
        assert_eq!(kneedle(&X, &Y, Curve::Concave, 1.0), Some(2));
    }

    #[test]
    fn a_convex_curve_is_the_same_curve_turned() {
        let x: Vec<f64> = X.iter().rev().map(|x| 1.0 - x).collect();
        let y: Vec<f64> = Y.iter().rev().map(|y| -y).collect();
        assert_eq!(kneedle(&x, &y, Curve::Convex, 1.0), Some(7));
    }

    #[test]
    fn a_line_nothing_and_nonsense_have_no_knee() {
        let x = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(kneedle(&x, &x, Curve::Concave, 1.0), None);
        assert_eq!(kneedle(&x, &[5.0; 4], Curve::Concave, 1.0), None);
        assert_eq!(kneedle(&[], &[], Curve::Concave, 1.0), None);
        assert_eq!(kneedle(&[1.0, 1.0, 1.0], &[1.0, 2.0, 3.0], Curve::Concave, 1.0), None);
        assert_eq!(kneedle(&x, &[1.0, f64::NAN, 2.0, 3.0], Curve::Concave, 1.0), None);
    }
}
