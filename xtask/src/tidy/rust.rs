//! Rust source without its comments and strings, without a compiler.
//!
//! It knows strings, raw strings, characters, lifetimes and nested comments: the import checks need no more.

/// The code of `text`: comments and the contents of strings are blanks, lines keep their numbers.
pub(super) fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else {
            literal(rest, code.chars().next_back())
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let blanks = rest[..skipped].chars().map(|c| if c == '\n' { c } else { ' ' });
            code.extend(blanks);
            rest = &rest[skipped..];
        }
    }
    code
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
        let code = code_of(text);
        assert!(!code.contains("crate") && !code.contains("\"x\"") && !code.contains("why"));
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(code.contains("fn f<'a>(x: &'a u8) -> char {") && code.ends_with("end"));
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let code = "mod a; #[cfg(test)] mod tests { use crate::b; } #[cfg(test)]\nmod c; fn d() {}";
        assert_eq!(tokens(code).join(" "), "mod a ; fn d ( ) { }");
        assert_eq!(test_modules(code), ["c"]);
    }
}
