//! The report as one page: charts and their script inside, nothing from the network.

use std::fmt::Write;

use serde_json::{Value, json};

use super::page::{Block, Chart, Report, Section, Table};
use crate::chart::escape;
use crate::html::{self, line, table};

const STYLE: &str = include_str!("style.css");

/// Draws the charts, and opens what is folded when the page is printed.
const SCRIPT: &str = include_str!("page.js");

/// The policy by which the browser lets the page do nothing but what is in it. The library compiles the
/// parts of its 3-D charts while it runs.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; \
                      style-src 'unsafe-inline'; img-src data: blob:";

/// The whole page.
pub(super) fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n",
        escape(POLICY),
        escape(&report.title),
        html::STYLE,
    );
    head(&mut page, report);
    let mut charts = Vec::<Value>::new();
    for (index, part) in report.sections.iter().enumerate() {
        section(&mut page, index, part, &mut charts);
    }
    line(&mut page, "footer", "Made by Voltier. The page needs no network.");
    page.push_str(
        "<noscript><p>Charts need JavaScript; their figures are in the tables.</p></noscript>\n",
    );
    if !charts.is_empty() {
        page.push_str(library());
        page.push_str("</script>\n");
    }
    write!(
        page,
        "<script type=\"application/json\" id=\"charts\">{}</script>\n<script>\n{SCRIPT}</script>\n",
        inert(&Value::Array(charts))
    )
    .expect("a string takes any text");
    page.push_str("</body>\n</html>\n");
    page
}

/// The chart library's own script with its opening tag. The script behind it in the crate's text is
/// for formulas; there are none here.
fn library() -> &'static str {
    static LIBRARY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(|| {
        let both = plotly::Plot::offline_js_sources();
        both.split("</script>").next().unwrap_or_default().to_owned()
    })
}

/// JSON that no HTML parser mistakes for the end of its script: `<` stands only in texts.
fn inert(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn head(page: &mut String, report: &Report) {
    page.push_str("<header>\n");
    line(page, "h1", &report.title);
    line(page, "p", &report.subtitle);
    page.push_str("</header>\n<ul class=\"summary\">\n");
    for said in &report.summary {
        let word = said.tone.word();
        let text = escape(&said.text);
        page.push_str(&format!("<li class=\"{word}\"><b>{word}</b>{text}</li>\n"));
    }
    page.push_str("</ul>\n<nav aria-label=\"Contents\"><ul>\n");
    for (index, section) in report.sections.iter().enumerate() {
        let title = escape(&section.title);
        page.push_str(&format!("<li><a href=\"#section-{index}\">{title}</a></li>\n"));
    }
    page.push_str("</ul></nav>\n");
}

fn section(page: &mut String, index: usize, section: &Section, charts: &mut Vec<Value>) {
    let title = escape(&section.title);
    page.push_str(&format!("<section id=\"section-{index}\">\n<h2>{title}</h2>\n"));
    let mut in_charts = false;
    for block in &section.blocks {
        let is_chart = matches!(block, Block::Chart(_));
        if is_chart != in_charts {
            page.push_str(if is_chart { "<div class=\"charts\">\n" } else { "</div>\n" });
            in_charts = is_chart;
        }
        match block {
            Block::Text(text) => line(page, "p", text),
            Block::Heading(text) => line(page, "h3", text),
            Block::Code(text) => line(page, "pre", text),
            Block::Table(rows) => page.push_str(&table_of(rows)),
            Block::Folded(title, rows) => folded(page, title, rows),
            Block::Chart(chart) => figure(page, chart, charts),
            Block::List(items) => {
                page.push_str("<ul>\n");
                items.iter().for_each(|item| line(page, "li", item));
                page.push_str("</ul>\n");
            }
        }
    }
    if in_charts {
        page.push_str("</div>\n");
    }
    page.push_str("</section>\n");
}

fn table_of(rows: &Table) -> String {
    table(&rows.headings, &rows.rows)
}

fn folded(page: &mut String, title: &str, rows: &Table) {
    page.push_str("<details class=\"folded\">");
    line(page, "summary", title);
    page.push_str(&table_of(rows));
    page.push_str("</details>\n");
}

fn figure(page: &mut String, chart: &Chart, charts: &mut Vec<Value>) {
    let index = charts.len();
    let deep = if chart.is_3d { " deep" } else { "" };
    let layout = json!(chart.layout);
    let more = 1.3 * legend_rows(chart, &layout).saturating_sub(2) as f64;
    page.push_str("<figure>\n<figcaption>");
    line(page, "h3", &chart.title);
    line(page, "p", &chart.caption);
    let described = escape(&format!("{}. {}", chart.title, chart.caption));
    page.push_str(&format!(
        "</figcaption>\n<div class=\"plot{deep}\" id=\"chart-{index}\" role=\"img\" \
         style=\"--more:{more:.1}rem\" aria-label=\"{described}\"></div>\n"
    ));
    folded(page, "Figures of this chart", &chart.table);
    page.push_str("</figure>\n");
    charts.push(json!({ "data": chart.traces, "layout": layout, "is_3d": chart.is_3d }));
}

/// Lines that the legend takes below the chart, about: the chart grows by them.
fn legend_rows(chart: &Chart, layout: &Value) -> usize {
    if layout["showlegend"] == false {
        return 0;
    }
    let shown = chart.traces.iter().filter(|trace| trace["showlegend"] != false);
    let names: Vec<usize> =
        shown.filter_map(|trace| trace["name"].as_str()).map(|name| name.chars().count()).collect();
    let in_a_row = match names.iter().max() {
        Some(0..=14) => 3,
        Some(15..=22) => 2,
        _ => 1,
    };
    names.len().div_ceil(in_a_row)
}
