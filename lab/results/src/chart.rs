//! Bar charts as inline SVG: no script, no fonts, no network; scale to the width they are given.

use std::fmt::Write;

/// One bar.
pub struct Bar<'a> {
    /// The subject of the bar.
    pub label: &'a str,
    /// The length of the bar.
    pub value: f64,
    /// The text at the end of the bar.
    pub text: String,
    /// CSS class of the bar, for its colour.
    pub class: &'a str,
}

const WIDTH: f64 = 360.0;
const LABEL_WIDTH: f64 = 92.0;
const TEXT_WIDTH: f64 = 78.0;
const ROW_HEIGHT: f64 = 24.0;
const BAR_HEIGHT: f64 = 16.0;

/// Horizontal bars from zero, the longest as wide as the chart allows; `title` is for those who
/// cannot see it.
pub fn bars(title: &str, bars: &[Bar<'_>]) -> String {
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let room = WIDTH - LABEL_WIDTH - TEXT_WIDTH;
    let height = ROW_HEIGHT * bars.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <title>{}</title>\n",
        escape(title)
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = ROW_HEIGHT * index as f64 + (ROW_HEIGHT - BAR_HEIGHT) / 2.0;
        let base = top + BAR_HEIGHT - 4.0;
        // A hair's breadth for what is too small to see: it was measured, and it is not nothing.
        let length = if longest > 0.0 { (room * bar.value / longest).max(1.0) } else { 1.0 };
        let end = LABEL_WIDTH + length + 6.0;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" \
             rx=\"2\" class=\"{}\"/>\
             <text x=\"{end:.1}\" y=\"{base:.1}\">{}</text>",
            LABEL_WIDTH - 6.0,
            escape(bar.label),
            escape(bar.class),
            escape(&bar.text)
        )
        .expect("writing to a string cannot fail");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Text as it may stand in HTML, in an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_room_and_the_smallest_is_still_there() {
        let svg = bars(
            "random write",
            &[
                Bar { label: "HDD", value: 1.0, text: "1".into(), class: "hdd" },
                Bar { label: "SSD", value: 1e6, text: "1,000,000".into(), class: "ssd" },
            ],
        );
        assert!(svg.contains("width=\"190.0\""), "{svg}");
        assert!(svg.contains("width=\"1.0\""), "{svg}");
    }

    #[test]
    fn nothing_measured_is_drawn_without_dividing_by_zero() {
        let svg = bars("t", &[Bar { label: "a", value: 0.0, text: "0".into(), class: "hdd" }]);
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn markup_in_labels_is_text() {
        assert_eq!(escape("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
