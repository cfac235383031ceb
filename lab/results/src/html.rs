//! The common parts of every page of ours: the look, and tables that scroll where they are too wide.

use std::fmt::Write;

use crate::chart::escape;

/// Type, tables and blocks of code. `--line`, `--page` are the page's own colours.
pub const STYLE: &str = "\
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

/// Tables that become a card for each row where the page is narrow (see [`cards`]).
pub const CARDS_STYLE: &str = "\
@media (max-width:44rem){\n\
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}\n\
.cards table,.cards tbody{display:block}\n\
.cards tr{display:block;border:1px solid var(--line);border-radius:.3rem;margin:.6rem 0;padding:.4rem .7rem}\n\
.cards td,.cards td:first-child{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem 0;\
white-space:normal;text-align:right;position:static}\n\
.cards td::before{content:attr(data-label);text-align:left;opacity:.7}\n\
.cards td:first-child{font-weight:600;text-align:left}.cards td:first-child::before{content:none}\n\
}\n";

/// A column with a longer text than this is read, not looked up: it needs room, also where there is little.
const LONG: usize = 40;

/// One element with text in it.
pub fn line(page: &mut String, element: &str, text: &str) {
    writeln!(page, "<{element}>{}</{element}>", escape(text)).expect("a string takes any text");
}

/// Whether a cell is a number with at most a unit: those stand to the right.
pub fn is_figure(cell: &str) -> bool {
    let starts = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    cell.is_empty() || starts && cell.split(' ').count() <= 2
}

/// A table in a frame that scrolls; the keyboard reaches it. Columns with words have a class, and those
/// with sentences one more.
pub fn table<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    framed("scroll", headings, rows, |_| String::new())
}

/// The same for a page that has [`CARDS_STYLE`]: each cell knows its heading, which stands before it where
/// the page is narrow.
pub fn cards<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    let label = |column: usize| format!(" data-label=\"{}\"", escape(headings[column].as_ref()));
    framed("scroll cards", headings, rows, label)
}

fn framed<H: AsRef<str>>(
    frame: &str,
    headings: &[H],
    rows: &[Vec<String>],
    label: impl Fn(usize) -> String,
) -> String {
    let class = |column: usize| {
        let cells = || rows.iter().filter_map(|row| row.get(column));
        let longest = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        if cells().all(|cell| is_figure(cell)) {
            ""
        } else if longest > LONG {
            " class=\"words long\""
        } else {
            " class=\"words\""
        }
    };
    let classes: Vec<&str> = (0..headings.len()).map(class).collect();
    let mut html = format!("<div class=\"{frame}\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for (heading, class) in headings.iter().zip(&classes) {
        let text = escape(heading.as_ref());
        html.push_str(&format!("<th scope=\"col\"{class}>{text}</th>"));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, (cell, class)) in row.iter().zip(&classes).enumerate() {
            html.push_str(&format!("<td{class}{}>{}</td>", label(column), escape(cell)));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
    html
}
