//! Rust source cut into code and comments, without a compiler.
//!
//! The cutter knows strings, raw strings, characters, lifetimes and nested comments. The import and
//! prose checks need no more.

/// One line of a comment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment {
    /// From 1.
    pub(super) line: usize,
    /// The marker: `///`, `//!` or `//`.
    pub(super) marker: &'static str,
    pub(super) text: String,
}

/// A source file cut in two.
#[derive(Default)]
pub(super) struct Cut {
    /// The code; comments and the contents of strings are blanks, lines keep their numbers.
    pub(super) code: String,
    /// Line comments in order. Block comments are left out: the tree has none.
    pub(super) comments: Vec<Comment>,
}

/// Cuts `text`.
pub(super) fn cut(text: &str) -> Cut {
    let mut cut = Cut::default();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            let line = cut.code.matches('\n').count() + 1;
            cut.comments.push(comment(line, &rest[..length]));
            length
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else {
            literal(rest, cut.code.chars().next_back())
        };
        if skipped == 0 {
            cut.code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let blanks = rest[..skipped].chars().map(|c| if c == '\n' { c } else { ' ' });
            cut.code.extend(blanks);
            rest = &rest[skipped..];
        }
    }
    cut
}

fn comment(line: usize, text: &str) -> Comment {
    let marker = ["///", "//!", "//"].into_iter().find(|marker| text.starts_with(marker));
    let marker = marker.unwrap_or("//");
    Comment { line, marker, text: text[marker.len()..].trim().to_owned() }
}

/// The length of the block comment at the start of `text`, comments inside included.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string or character at the start of `text`; 0 when there is none.
fn literal(text: &str, before: Option<char>) -> usize {
    let in_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with('"') {
        return quoted(text, '"');
    }
    if text.starts_with('\'') {
        let mut next = text.chars().skip(1);
        let (one, two) = (next.next(), next.next());
        return if one == Some('\\') || two == Some('\'') { quoted(text, '\'') } else { 0 };
    }
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r'));
    let Some(raw) = raw.filter(|_| !in_name) else { return 0 };
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    if !raw[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = text.len() - raw.len() + hashes + 1;
    text[body..].find(&end).map_or(text.len(), |found| body + found + end.len())
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Names, `::`, and single other characters of code, without what only tests compile.
pub(super) fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = match name {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            _ => name,
        };
        found.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    without_tests(&found)
}

const TEST_MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&TEST_MARK) {
            at = end_of_item(tokens, at + TEST_MARK.len());
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Behind the `;` or the closing brace of the item at `at`.
fn end_of_item(tokens: &[&str], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return index + 1;
                }
            }
            ";" | "," if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The modules that only tests compile and that have a file of their own: `#[cfg(test)] mod name;`.
pub(super) fn test_modules(code: &str) -> Vec<String> {
    let pieces = code.split("#[cfg(test)]").skip(1);
    let names = pieces.filter_map(|piece| {
        let name = piece.trim_start().strip_prefix("mod ")?;
        Some(name[..name.find(';')?].trim().to_owned())
    });
    names.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_not_code() {
        let text = "//! Head.\nlet a = \"use crate::b; // no\"; // why\nlet c = r#\"\"x\"\"#;\n\
                    fn f<'a>(x: &'a u8) -> char { '\\'' } /* a /* b */ c */\nend";
        let cut = cut(text);
        let line = |line, marker, text: &str| Comment { line, marker, text: text.to_owned() };
        assert_eq!(cut.comments, [line(1, "//!", "Head."), line(2, "//", "why")]);
        assert!(!cut.code.contains("crate") && !cut.code.contains("\"x\""));
        assert_eq!(cut.code.lines().count(), text.lines().count());
        assert!(cut.code.contains("fn f<'a>(x: &'a u8) -> char {") && cut.code.ends_with("end"));
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let code = "mod a; #[cfg(test)] mod tests { use crate::b; } #[cfg(test)]\nmod c; fn d() {}";
        assert_eq!(tokens(code).join(" "), "mod a ; fn d ( ) { }");
        assert_eq!(test_modules(code), ["c"]);
    }
}
