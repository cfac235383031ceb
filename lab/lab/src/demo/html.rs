//! The report as one page: no script, no network, readable on a phone and on paper.

use voltier_results::chart::{Bar, bars, escape};
use voltier_results::html::{self, line};
use voltier_results::table::figure;

use super::notes;
use super::report::{Condition, Report, Row};

const STYLE: &str = "\
:root{color-scheme:light dark;--hdd:#8a8a8a;--ssd:#6b9bd1;--accelerated:#2e9e5b;--line:#8884;--page:Canvas}\n\
.charts{display:grid;gap:1.2rem 2rem;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr))}\n\
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:currentColor}\n\
.hdd{fill:var(--hdd)}.ssd{fill:var(--ssd)}.accelerated{fill:var(--accelerated)}\n\
.published{fill:none;stroke:var(--accelerated);stroke-dasharray:3 2}\n";

/// The whole page, well-formed XML as well as HTML.
pub fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>Voltier: a disk behind an SSD</title>\n<style>\n{}{}{STYLE}</style>\n</head>\n<body>\n\
         <h1>Voltier: a disk behind an SSD</h1>\n",
        html::STYLE,
        html::CARDS_STYLE,
    );
    let mut lead = notes::lead(report).into_iter();
    if let Some(answer) = lead.next() {
        page.push_str(&format!("<p class=\"lead\">{}</p>\n", escape(&answer)));
    }
    lead.for_each(|text| said(&mut page, "p", &text));
    for (number, section) in report.sections().iter().enumerate() {
        line(&mut page, "h2", section.title);
        said(&mut page, "p", &section.condition);
        page.push_str(&html::cards(section.headings, &section.cells));
        list(&mut page, &section.notes);
        // Behind the five jobs.
        if number == 0 {
            page.push_str("<h2>Side by side</h2>\n<div class=\"charts\">\n");
            report.rows.iter().for_each(|row| page.push_str(&chart(report, row)));
            page.push_str(&cliff(report).unwrap_or_default());
            page.push_str("</div>\n");
        }
    }
    line(&mut page, "h2", "How to read it");
    list(&mut page, &notes::general(report));
    page.push_str("<h2>Commands</h2>\n");
    line(
        &mut page,
        "p",
        "Shown for the accelerated volume; the five jobs run against the other two as well, and the two \
         over one area against the SSD.",
    );
    line(&mut page, "pre", &report.commands.join("\n"));
    page.push_str("</body>\n</html>\n");
    page
}

fn list(page: &mut String, items: &[String]) {
    if items.is_empty() {
        return;
    }
    page.push_str("<ul>\n");
    items.iter().for_each(|item| said(page, "li", item));
    page.push_str("</ul>\n");
}

/// An element with a text of the notes, in which backticks enclose what is typed.
fn said(page: &mut String, element: &str, text: &str) {
    page.push_str(&format!("<{element}>"));
    for (number, part) in text.split('`').enumerate() {
        let part = escape(part);
        let is_code = number % 2 == 1;
        page.push_str(&if is_code { format!("<code>{part}</code>") } else { part });
    }
    page.push_str(&format!("</{element}>\n"));
}

fn chart(report: &Report, row: &Row) -> String {
    let title = format!("{}, {}", row.job.label, row.job.unit.name());
    let published = row.job.published(report.options.ssd).accelerated;
    figure_of(
        &title,
        &[
            bar("HDD", row.hdd.median(), "hdd"),
            bar("SSD", row.ssd.median(), "ssd"),
            bar("accelerated", row.accelerated.median(), "accelerated"),
            bar("published", published, "published"),
        ],
    )
}

/// Random writes as the SSD becomes smaller than what is written.
fn cliff(report: &Report) -> Option<String> {
    let large = report.row("rand_write")?;
    let small = report.other("rand_write", Condition::SmallSsd)?;
    Some(figure_of(
        "random write by size of the SSD, IOPS",
        &[
            bar("no SSD", large.hdd.median(), "hdd"),
            bar("half the set", small.accelerated.median(), "accelerated"),
            bar("8 x the set", large.accelerated.median(), "accelerated"),
        ],
    ))
}

fn bar<'a>(label: &'a str, value: f64, class: &'a str) -> Bar<'a> {
    Bar { label, value, text: figure(value), class }
}

fn figure_of(title: &str, all: &[Bar<'_>]) -> String {
    format!("<div>\n<h3>{}</h3>\n{}</div>\n", escape(title), bars(title, all))
}

#[cfg(test)]
mod tests {
    use super::super::report::Section;
    use super::super::report::tests::sample;
    use super::*;

    /// Checks that every element that is opened is closed, in order, and returns the elements seen.
    fn elements_of_well_formed(page: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "a bare '>' before {}", &rest[start..]);
            let end = start + rest[start..].find('>').expect("every tag ends");
            let tag = &rest[start + 1..end];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
            } else {
                let name = tag.split_whitespace().next().unwrap().trim_end_matches('/').to_owned();
                assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
                if !tag.ends_with('/') {
                    open.push(name.clone());
                }
                seen.push(name);
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "left open: {open:?}");
        seen
    }

    #[test]
    fn the_page_is_well_formed_and_complete() {
        let report = sample();
        let page = render(&report);
        let elements = elements_of_well_formed(&page);
        assert_eq!(elements.iter().filter(|name| *name == "svg").count(), 6);
        let cells = |section: &Section| section.headings.len() * section.cells.len();
        let cells: usize = report.sections().iter().map(cells).sum();
        assert_eq!(elements.iter().filter(|name| *name == "td").count(), cells);
        assert!(page.contains("A &amp; B &lt;processor&gt;, 2 processors, 8 GiB"), "{page}");
        assert!(page.contains("fio --rw=read &quot;--bs=4k&quot;"));
    }

    #[test]
    fn the_page_names_its_document_and_what_it_does_not_show() {
        let page = render(&sample());
        for said in
            ["TaoCloud MaxIO", "October 2015", "Not shown: real drives", "A simulation, not a run"]
        {
            assert!(page.contains(said), "{said}");
        }
        assert!(page.contains("answered by one"));
        assert!(page.contains("the daemon <code>voltier</code> with"), "{page}");
    }

    #[test]
    fn every_cell_knows_its_heading_for_narrow_pages() {
        let page = render(&sample());
        let cells = page.matches("<td").count();
        assert_eq!(page.matches("data-label=").count(), cells);
    }

    #[test]
    fn the_page_needs_nothing_from_the_network() {
        let page = render(&sample());
        let namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
        let page = page.replace(namespace, "");
        for word in ["http:", "https:", "<script", "<link", "url(", "@import", "src="] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn the_first_sentences_say_what_was_gained_and_what_it_takes() {
        let first = notes::lead(&sample()).remove(0);
        assert_eq!(
            first,
            "With a warm SSD in front of it the disk is up to 390 times as fast (random 75r25w), and \
             gives 98 % (seq write) to 98 % (random 75r25w) of the bare SSD. Cold, it is as slow as the \
             disk: 500 IOPS (random read). With an SSD of half the test set, random writes fall to 500 \
             IOPS."
        );
    }
}
