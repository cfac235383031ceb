//! Tables of text: the first column to the left, the others to the right.

/// Lays `rows` under `headings`, each column as wide as its widest cell, two spaces between.
pub fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let columns = headings.len();
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        assert_eq!(row.len(), columns, "every row has a cell for every heading");
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if index == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(headings.to_vec());
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text.push_str(&line(rule.iter().map(String::as_str).collect()));
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// A figure with as many digits as it can be trusted to: three, or all of a large one.
/// Thousands are separated: "38,092", "271", "9.87".
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number without digits that say nothing: "16", "5.33".
pub fn whole_or_figure(value: f64) -> String {
    let is_whole = (value - value.round()).abs() < 1e-9;
    if is_whole { format!("{value:.0}") } else { figure(value) }
}

/// A fraction as a percentage: "96 %". Two digits more near the ends, where they matter.
pub fn percent(fraction: f64) -> String {
    let value = fraction * 100.0;
    let near_the_end = value > 99.0 && value < 100.0 || value > 0.0 && value < 1.0;
    if near_the_end { format!("{value:.2} %") } else { format!("{value:.0} %") }
}

/// A latency as people read it: "850 ns", "101.6 us", "2.44 ms", "1.2 s".
pub fn latency(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = [100.0, 10.0, 1.0].iter().position(|least| value >= *least).unwrap_or(3);
    let digits = if unit == "ns" { 0 } else { digits };
    format!("{value:.digits$} {unit}")
}

/// The middle of the values, or the mean of the two in the middle. Zero of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => f64::midpoint(values[count / 2 - 1], values[count / 2]),
        count => values[count / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["seq write".to_owned(), "107".to_owned()],
            vec!["rand".to_owned(), "38,092".to_owned()],
        ];
        let expected = "job           HDD\n\
                        ---------  ------\n\
                        seq write     107\n\
                        rand       38,092\n";
        assert_eq!(render(&["job", "HDD"], &rows), expected);
    }

    #[test]
    fn figures_are_read_at_a_glance() {
        for (value, text) in [
            (0.0, "0.00"),
            (1.006, "1.01"),
            (23.44, "23.4"),
            (238.4, "238"),
            (38092.0, "38,092"),
            (1_234_567.8, "1,234,568"),
            (-1234.0, "-1,234"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!([4.0, 16.0, 5.333_333].map(whole_or_figure), ["4", "16", "5.33"]);
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        assert!((median(vec![10.0, 9999.0, 9.0]) - 10.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn hit_rates_near_one_keep_the_digits_that_matter() {
        assert_eq!(percent(0.9953), "99.53 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(0.71), "71 %");
        assert_eq!(percent(0.0), "0 %");
    }
}
