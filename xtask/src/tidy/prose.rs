//! Sentences of comments and pages: each names its subject, in the words of the glossary, is short, and
//! stands on lines that fit a screen.
//!
//! A sentence that opens with a pronoun or a relative sends its reader back to the sentence before, or to
//! the code. A long sentence makes its reader hold its beginning in mind. Code spans, code blocks,
//! headings and tables are no sentences.

use super::ratchet::{Breach, Rule};
use super::rust::{self, Comment};
use super::tree::SourceFile;

/// Longer lines of a page are folded.
const WIDTH_MAX: usize = 120;

/// A sentence with more words is cut in two.
const WORDS_MAX: usize = 25;

/// Pronouns and relatives that are no subject. Words that begin as many good sentences (`One`, `Each`,
/// `Whether`, `How`) are left out.
const OPENINGS: [&str; 19] = [
    "It",
    "Its",
    "It's",
    "They",
    "Their",
    "Them",
    "He",
    "His",
    "She",
    "Her",
    "What",
    "Whatever",
    "Who",
    "Whoever",
    "Whose",
    "Whom",
    "Which",
    "Whichever",
    "Theirs",
];

/// Conjunctions behind which a pronoun has its noun in the sentence before.
const CONJUNCTIONS: [&str; 13] = [
    "When", "Whether", "Why", "Where", "While", "With", "If", "Until", "Unless", "Because", "As",
    "Once", "Whenever",
];

/// Pronouns that follow a conjunction.
const PRONOUNS: [&str; 6] = ["it", "its", "they", "their", "them", "it's"];

/// Demonstratives are no subject when a verb follows; before a noun (`This file`) they are.
const DEMONSTRATIVES: [&str; 5] = ["This", "That", "These", "Those", "Such"];

const VERBS: [&str; 30] = [
    "is", "are", "was", "were", "has", "have", "had", "does", "do", "did", "can", "could", "may",
    "might", "must", "will", "would", "should", "means", "makes", "keeps", "holds", "says",
    "takes", "gives", "needs", "goes", "one", "ones", "who",
];

/// Words that a standard term of the field replaced: (word, term). Both numbers of a noun are listed. The
/// table grows with every rename; a word with a second, good meaning in the tree stays out of it.
const SYNONYMS: [(&str, &str); 30] = [
    ("door", "export"),
    ("doors", "exports"),
    ("newcomer", "pending member"),
    ("newcomers", "pending members"),
    ("in company", "as waiters of a single flight"),
    ("in doubt", "needs resync"),
    ("taken back", "cleared"),
    ("takes back", "clears"),
    ("take back", "clear"),
    ("departed", "replaced or evicted"),
    ("dismissed", "evicted"),
    ("pump", "journal writer"),
    ("mover", "reshape worker"),
    ("stretch", "extent"),
    ("stretches", "extents"),
    ("bay", "harness"),
    ("rig", "fixture"),
    ("rot", "bit rot"),
    ("meeting", "write coalescing"),
    ("member for room", "member for capacity"),
    ("members for room", "members for capacity"),
    ("rotten", "bit rot"),
    ("gathers", "joins, merges or collects"),
    ("follower", "waiter"),
    ("followers", "waiters"),
    ("witness", "cross-check"),
    ("witnesses", "cross-checks"),
    ("settled", "a verb for what happens"),
    ("story", "scenario"),
    ("stories", "scenarios"),
];

/// Everything one file's prose is told.
pub(super) fn breaches(file: &SourceFile) -> Vec<Breach> {
    if file.is("rs") {
        return paragraphs(&rust::cut(&file.text).comments)
            .iter()
            .flat_map(|paragraph| told(file, paragraph))
            .collect();
    }
    if !file.is("md") {
        return Vec::new();
    }
    let page = page(&file.text);
    let wide = page.iter().filter(|line| line.in_text && is_too_wide(&line.text)).map(|line| {
        let message = format!("{} columns: {WIDTH_MAX} is the most", line.text.chars().count());
        Breach::new(Rule::WidePages, &file.path, line.number, message)
    });
    let told = page_paragraphs(&page).into_iter().flat_map(|paragraph| told(file, &paragraph));
    wide.chain(told).collect()
}

/// Lines that make sentences together.
type Paragraph = Vec<(usize, String)>;

fn told(file: &SourceFile, paragraph: &Paragraph) -> Vec<Breach> {
    let mut found = Vec::new();
    for (line, sentence) in sentences(paragraph) {
        if let Some(opening) = opening(&sentence) {
            let message = format!("a sentence opens with `{opening}`: name its subject");
            found.push(Breach::new(Rule::Openings, &file.path, line, message));
        }
        let words = words(&sentence);
        if words > WORDS_MAX {
            let message = format!("a sentence of {words} words: {WORDS_MAX} are the most");
            found.push(Breach::new(Rule::LongSentences, &file.path, line, message));
        }
    }
    for (line, text) in paragraph {
        let words: Vec<String> =
            without_code(text).split(not_in_word).map(str::to_lowercase).collect();
        let text = format!(" {} ", words.join(" "));
        for (word, term) in SYNONYMS {
            // A term may have its old word in it.
            let text = text.replace(&format!(" {term} "), "  ");
            for _ in text.matches(&format!(" {word} ")) {
                let message = format!("`{word}`: the term is `{term}`");
                found.push(Breach::new(Rule::Synonyms, &file.path, *line, message));
            }
        }
    }
    found
}

fn not_in_word(c: char) -> bool {
    !c.is_alphanumeric() && c != '\'' && c != '_' && c != '-'
}

/// Comment lines that follow each other with the same marker, cut at empty lines, headings, tables and
/// list items.
fn paragraphs(comments: &[Comment]) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut before: Option<&Comment> = None;
    let mut in_code = false;
    for comment in comments {
        let follows = before.is_some_and(|before| {
            before.line + 1 == comment.line
                && before.marker == comment.marker
                && !before.text.is_empty()
        });
        before = Some(comment);
        if comment.text.starts_with("```") {
            in_code = !in_code;
            found.push(Vec::new());
        } else if comment.text.starts_with(['|', '#']) {
            found.push(Vec::new());
        } else if !in_code {
            add_line(&mut found, follows, comment.line, &comment.text);
        }
    }
    found
}

fn add_line(paragraphs: &mut Vec<Paragraph>, follows: bool, line: usize, text: &str) {
    let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")).or_else(|| {
        let (number, rest) = text.split_once(". ")?;
        number.chars().all(|c| c.is_ascii_digit()).then_some(rest)
    });
    if item.is_some() || !follows || paragraphs.is_empty() {
        paragraphs.push(Vec::new());
    }
    let last = paragraphs.last_mut().expect("a paragraph was begun");
    last.push((line, item.unwrap_or(text).to_owned()));
}

/// A line of a page, and whether it is text: no code block, no table.
struct PageLine {
    number: usize,
    text: String,
    in_text: bool,
}

fn page(text: &str) -> Vec<PageLine> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        let in_text = !fence && !in_code && !line.trim_start().starts_with('|');
        in_code ^= fence;
        lines.push(PageLine { number: index + 1, text: line.to_owned(), in_text });
    }
    lines
}

/// Whether a line is over the limit and has a place where it could be cut.
fn is_too_wide(line: &str) -> bool {
    let marker = |c: char| c.is_whitespace() || matches!(c, '-' | '*' | '>');
    let cannot_be_cut = !line.trim_start_matches(marker).trim_end().contains(' ');
    line.chars().count() > WIDTH_MAX && !cannot_be_cut
}

fn page_paragraphs(lines: &[PageLine]) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut follows = false;
    for line in lines {
        let text = line.text.trim();
        let is_prose = line.in_text && !text.is_empty() && !text.starts_with('#');
        if is_prose {
            add_line(&mut found, follows, line.number, text);
        }
        follows = is_prose;
    }
    found
}

/// The sentences of a paragraph with the line each begins on. A semicolon or a colon ends none.
fn sentences(paragraph: &Paragraph) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut ended = true;
    for (line, text) in paragraph {
        for word in text.split_whitespace() {
            match found.last_mut() {
                Some((_, sentence)) if !ended => {
                    sentence.push(' ');
                    sentence.push_str(word);
                }
                _ => found.push((*line, word.to_owned())),
            }
            ended = word.trim_end_matches(['"', ')', '*', '`']).ends_with(['.', '?', '!']);
        }
    }
    found
}

/// The pronoun or relative that `sentence` opens with, or the conjunction with a pronoun behind.
fn opening(sentence: &str) -> Option<String> {
    let mut words = sentence.split_whitespace();
    let first = words.next()?.trim_start_matches(['"', '(', '*', '_']);
    let first = first.trim_end_matches([',', ':', ';']);
    let next = words.next().unwrap_or_default();
    let demonstrative = DEMONSTRATIVES.contains(&first) && VERBS.contains(&next.trim_matches('*'));
    if CONJUNCTIONS.contains(&first) && PRONOUNS.contains(&next.trim_end_matches([',', ';', '.'])) {
        return Some(format!("{first} {next}"));
    }
    (OPENINGS.contains(&first) || demonstrative).then(|| first.to_owned())
}

/// How many words a sentence has. A code span is one, and so is the text of a link without a space. The
/// address of a link is none, nor is a figure.
fn words(sentence: &str) -> usize {
    let sentence = without_code(sentence);
    let pieces = sentence.split("](").enumerate();
    let texts = pieces.map(|(at, piece)| {
        let address = if at == 0 { None } else { piece.find(')') };
        address.map_or(piece, |end| &piece[end + 1..])
    });
    let text: String = texts.collect();
    let is_word = |word: &&str| word.contains(|c: char| c.is_alphabetic() || c == '_');
    text.split_whitespace().filter(is_word).count()
}

/// The line with its code spans blanked.
fn without_code(line: &str) -> String {
    let pieces = line.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 0 { piece } else { "_" }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.into(), text: text.to_owned() };
        breaches(&file).iter().map(|place| place.finding.to_string()).collect()
    }

    #[test]
    fn a_sentence_that_opens_with_a_pronoun_is_noticed_wherever_it_begins() {
        let text = "//! A head.\n//! It goes on,\n//! and This is inside.\n\n/// What a thing is.\n\
                    /// This file is\n/// one. That is it.\nlet a = \"It\"; // Whether that is so.\n";
        let lines: Vec<String> =
            said("a.rs", text).iter().map(|text| text[..8].to_owned()).collect();
        assert_eq!(lines, ["a.rs:2: ", "a.rs:5: ", "a.rs:7: "]);
        assert_eq!(said("a.md", "# What it is\n\n| It is |\n\n- Who comes first.\n").len(), 1);
        assert_eq!(said("a.md", "```text\nIt is.\n```\n"), [""; 0]);
        let found = said("a.rs", "/// When it ends.\n/// When the cache ends, it is said.\n");
        assert_eq!(found, ["a.rs:1: a sentence opens with `When it`: name its subject"]);
    }

    #[test]
    fn a_long_sentence_is_noticed_and_tables_code_and_addresses_are_not_counted() {
        let noticed = |path: &str, text: &str| said(path, text).len();
        let most = "ab ".repeat(25);
        let found = said("a.rs", &format!("//! Short.\n//! {most}\n//! cd.\n"));
        assert_eq!(found, ["a.rs:2: a sentence of 26 words: 25 are the most"]);
        assert_eq!(noticed("a.md", &format!("A head.\n{most}cd:\n{most}cd.\n")), 1);
        assert_eq!(noticed("a.md", &format!("- {most}\n- cd\n\n{most}.\ncd.\n")), 0);
        assert_eq!(noticed("a.md", &format!("# {most}cd\n\n| {most}cd |\n")), 0);
        assert_eq!(noticed("a.rs", &format!("/// # {most}\n/// | {most} |\n/// cd\n")), 0);
        assert_eq!(noticed("a.md", &format!("```text\n{most}cd\n```\n")), 0);
        let one_less = "ab ".repeat(24);
        assert_eq!(noticed("a.md", &format!("{one_less}[`c d\ne`](f/g.md) 12.5.\n")), 0);
        assert_eq!(noticed("a.md", &format!("{one_less}[cd ef](g.md).\n")), 1);
    }

    #[test]
    fn words_that_left_the_glossary_are_noticed_outside_code() {
        let text = "/// The regions in doubt, by `door`.\n// Doors are indoors, bit rot is.\nfn door() {}\n";
        let expected = [
            "a.rs:1: `in doubt`: the term is `needs resync`",
            "a.rs:2: `doors`: the term is `exports`",
        ];
        assert_eq!(said("a.rs", text), expected);
        assert_eq!(said("a.toml", "# a door\n"), [""; 0]);
    }

    #[test]
    fn wide_lines_of_a_page_are_noticed_where_they_can_be_cut() {
        let wide = "abcde ".repeat(21);
        assert_eq!(said("a.md", &format!("{wide}\n")), ["a.md:1: 126 columns: 120 is the most"]);
        assert_eq!(said("a.md", &format!("| {wide} |\n\n```\n{wide}\n```\n")), [""; 0]);
        assert_eq!(said("a.md", &format!("- https://{}\n", "x".repeat(130))), [""; 0]);
        assert_eq!(said("a.rs", &format!("// {wide}\n")), [""; 0]);
    }
}
