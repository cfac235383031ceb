//! What every page of ours shares: its look, and tables that scroll where they are too wide.

use std::fmt::Write;

use crate::chart::escape;

/// Type, tables and blocks of code. `--line`, `--page` are the page's own colours.
pub(crate) const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:74rem}\n\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin:.2rem 0}\n\
.lead{font-size:1.1rem}\n\
.scroll{overflow-x:auto}\n\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}\n\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line)}\n\
th{white-space:normal;vertical-align:bottom}\n\
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}\n\
ul{padding-left:1.2rem}li{margin:.3rem 0;max-width:52rem}\n\
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.7rem;border:1px solid var(--line);\
font-size:.85rem}\n";

/// One element with text in it.
pub(crate) fn line(page: &mut String, element: &str, text: &str) {
    writeln!(page, "<{element}>{}</{element}>", escape(text)).expect("a string takes any text");
}

/// A table in a frame that scrolls; the keyboard reaches it.
pub(crate) fn table<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for heading in headings {
        html.push_str(&format!("<th scope=\"col\">{}</th>", escape(heading.as_ref())));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for cells in rows {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        html.push_str(&format!("<tr>{cells}</tr>\n"));
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
    html
}
