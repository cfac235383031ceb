//! The report as GitHub's Markdown: charts are captions and tables.

use super::page::{Block, Report, Table};
use crate::html::is_figure;

/// Rows of a table that is not folded.
const ROWS_MAX: usize = 200;

/// The whole text.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("# {}\n\n{}\n\n", plain(&report.title), plain(&report.subtitle));
    for line in &report.summary {
        text.push_str(&format!("- **{}**: {}\n", line.tone.word(), plain(&line.text)));
    }
    for section in &report.sections {
        text.push_str(&format!("\n## {}\n\n", plain(&section.title)));
        for block in &section.blocks {
            text.push_str(&of_block(block));
        }
    }
    text
}

fn of_block(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("{}\n\n", plain(text)),
        Block::Heading(title) => format!("### {}\n\n", plain(title)),
        Block::List(items) => {
            let items: Vec<String> =
                items.iter().map(|item| format!("- {}\n", plain(item))).collect();
            format!("{}\n", items.concat())
        }
        Block::Code(text) => code(text),
        Block::Table(table) => rows(table),
        Block::Folded(title, table) => folded(title, table),
        Block::Chart(chart) => format!(
            "### {}\n\n{}\n\n{}",
            plain(&chart.title),
            plain(&chart.caption),
            folded("Figures", &chart.table)
        ),
    }
}

fn folded(title: &str, table: &Table) -> String {
    format!("<details><summary>{}</summary>\n\n{}</details>\n\n", plain(title), rows(table))
}

fn rows(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&table.headings);
    let has_words = |column: &usize| table.rows.iter().any(|row| !is_figure(&row[*column]));
    let side = |column: usize| if has_words(&column) { "---" } else { "---:" };
    let rule: Vec<&str> = (0..table.headings.len()).map(side).collect();
    text.push_str(&format!("| {} |\n", rule.join(" | ")));
    table.rows.iter().take(ROWS_MAX).for_each(|row| text.push_str(&line(row)));
    if table.rows.len() > ROWS_MAX {
        let more = table.rows.len() - ROWS_MAX;
        text.push_str(&format!("\n{more} more rows: see report.html or points.csv.\n"));
    }
    text.push('\n');
    text
}

/// A block whose fence is longer than any within.
fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{}\n{fence}\n\n", text.trim_end())
}

/// Text that means nothing to Markdown but itself.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => plain.push(' '),
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '&' => plain.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' | '@' => {
                plain.push('\\');
                plain.push(c);
            }
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_text() {
        let text = plain("a|b <img src=x> [x](javascript:y) `z`\n# h");
        assert_eq!(text, "a\\|b &lt;img src=x&gt; \\[x\\](javascript:y) \\`z\\` \\# h");
        assert_eq!(code("``` x"), "````text\n``` x\n````\n\n");
    }

    #[test]
    fn a_table_has_a_rule_for_every_column() {
        let mut table = Table::new(["a", "b"]);
        table.row(vec!["x".into(), "1".into()]);
        assert_eq!(rows(&table), "| a | b |\n| --- | ---: |\n| x | 1 |\n\n");
    }
}
