//! The report as one page: no script, no network, readable on a phone and on paper.

use voltier_results::chart::{Bar, bars, escape};
use voltier_results::html::{self, line};
use voltier_results::table::{figure, percent};

use super::report::{HEADINGS, Report, Row};

const STYLE: &str = "\
:root{color-scheme:light dark;--hdd:#9a9a9a;--ssd:#6b9bd1;--accelerated:#2e9e5b;--line:#8884;--page:Canvas}\n\
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
         <title>Voltier: a disk behind an SSD</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n\
         <h1>Voltier: a disk behind an SSD</h1>\n<p class=\"lead\">{}</p>\n",
        html::STYLE,
        escape(&summary(report))
    );
    page.push_str(&html::table(&HEADINGS, &report.cells()));
    page.push_str("<h2>Side by side</h2>\n<div class=\"charts\">\n");
    for row in &report.rows {
        page.push_str(&chart(row));
    }
    page.push_str("</div>\n<h2>How to read it</h2>\n<ul>\n");
    for note in report.notes() {
        line(&mut page, "li", &note);
    }
    page.push_str("</ul>\n<h2>Machine and client</h2>\n");
    line(
        &mut page,
        "p",
        &format!("{}. Client: {}.", report.machine.describe(), report.fio_version),
    );
    page.push_str("<h2>Commands</h2>\n");
    line(
        &mut page,
        "p",
        "Shown for the accelerated volume; the same is run against the other two.",
    );
    line(&mut page, "pre", &report.commands.join("\n"));
    page.push_str("</body>\n</html>\n");
    page
}

/// The one sentence most readers came for.
fn summary(report: &Report) -> String {
    let times = |row: &Row| row.times_hdd();
    let most = report.rows.iter().max_by(|a, b| times(a).total_cmp(&times(b)));
    let least = report.rows.iter().min_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    match (most, least) {
        (Some(most), Some(least)) => format!(
            "With the SSD in front of it the disk is up to {} times as fast ({}), and reaches at \
             least {} of the bare SSD in every job ({}).",
            figure(most.times_hdd()),
            most.job.label,
            percent(least.ratio()),
            least.job.label
        ),
        _ => "Nothing was measured.".to_owned(),
    }
}

fn chart(row: &Row) -> String {
    let title = format!("{}, {}", row.job.label, row.job.unit.name());
    let bar = |label, value, class| Bar { label, value, text: figure(value), class };
    let svg = bars(
        &title,
        &[
            bar("HDD", row.hdd, "hdd"),
            bar("SSD", row.ssd, "ssd"),
            bar("accelerated", row.accelerated, "accelerated"),
            bar("published", row.published.accelerated, "published"),
        ],
    );
    format!("<div>\n<h3>{}</h3>\n{svg}</div>\n", escape(&title))
}

#[cfg(test)]
mod tests {
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
        let page = render(&sample());
        let elements = elements_of_well_formed(&page);
        assert_eq!(elements.iter().filter(|name| *name == "svg").count(), 5);
        assert_eq!(elements.iter().filter(|name| *name == "td").count(), 5 * HEADINGS.len());
        assert!(page.contains("A &amp; B &lt;processor&gt;, 2 processors, 8 GiB"), "{page}");
        assert!(page.contains("fio --rw=read &quot;--bs=4k&quot;"));
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
    fn the_first_sentence_says_what_was_gained() {
        assert_eq!(
            summary(&sample()),
            "With the SSD in front of it the disk is up to 390 times as fast (random 75r25w), and \
             reaches at least 98 % of the bare SSD in every job (seq write)."
        );
    }
}
