//! The rules of every source file: width, unsafe code in its place, no unfinished work, no paths of one
//! machine.

use std::path::Path;

use super::finding::Finding;
use super::tree::SourceFile;

/// rustfmt keeps code to 100 columns. Comments and strings, which it leaves alone, may run over by a
/// word; a URL may run as far as it must.
const WIDTH_MAX: usize = 120;

/// The crates that talk to the kernel, to memory, to vector instructions or to a library in C, and what stands for that
/// library in tests.
const UNSAFE_CRATES: [&str; 7] = [
    "crates/block",
    "crates/ring",
    "crates/parity",
    "crates/export",
    "crates/librbd",
    "crates/librbd-fake",
    "lab/bench",
];

/// Written in two halves, so that this file keeps to its own rule.
const FORBIDDEN: [(&str, &str); 5] = [
    (concat!("todo", "!"), "finish it, or leave it out"),
    (concat!("unimplemented", "!"), "finish it, or leave it out"),
    (concat!("FIX", "ME"), "mend it, or open an issue"),
    (concat!("X", "XX"), "mend it, or open an issue"),
    (concat!("#[", "ignore"), "a test that does not run proves nothing: run it or remove it"),
];

/// Folders of one machine, which mean nothing on another.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Checks one file.
pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_code = !file.is("md") && !file.is("toml");
    for (index, line) in file.text.lines().enumerate() {
        let mut say = |message: String| {
            findings.push(Finding::new(&file.path, index + 1, message));
        };
        let width = line.chars().count();
        if is_code && width > WIDTH_MAX && !line.contains("://") {
            say(format!("{width} columns: {WIDTH_MAX} is the most"));
        }
        for (word, instead) in FORBIDDEN {
            if has_word(line, word) {
                say(format!("`{word}` must not stay: {instead}"));
            }
        }
        for path in MACHINE_PATHS {
            if has_word(line, path) {
                say(format!("`{path}` is a folder of one machine"));
            }
        }
    }
    if file.is("rs") {
        findings.extend(unsafe_out_of_place(file));
    }
    findings
}

/// Whether `word` stands in `line` by itself, not as a part of a longer name or path.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let is_path = word.ends_with('/');
        let starts_inside = before.is_some_and(|c| {
            part_of_name(c) || is_path && matches!(c, '/' | '.' | '-' | '}' | '*')
        });
        let ends_inside = word.ends_with(part_of_name) && after.is_some_and(part_of_name);
        !starts_inside && !ends_inside
    })
}

fn unsafe_out_of_place(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().enumerate().filter(|(_, line)| is_unsafe(line));
    let lines: Vec<usize> = lines.map(|(index, _)| index + 1).collect();
    let Some(first) = lines.first() else { return Vec::new() };
    if !allows_unsafe(&file.path) {
        let message = format!("unsafe code belongs in {} only", UNSAFE_CRATES.join(", "));
        return lines
            .iter()
            .map(|line| Finding::new(&file.path, *line, message.as_str()))
            .collect();
    }
    if !file.text.contains("UNSAFETY:") {
        let message = "say in the file's header, after UNSAFETY:, why it needs unsafe code and what \
                       keeps it sound";
        return vec![Finding::new(&file.path, *first, message)];
    }
    Vec::new()
}

fn allows_unsafe(path: &Path) -> bool {
    UNSAFE_CRATES.iter().any(|name| path.starts_with(name))
}

fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") {
        return false;
    }
    let keyword = concat!("un", "safe");
    let uses = ["{", "fn", "impl", "trait", "extern"].map(|next| format!("{keyword} {next}"));
    let lint = format!("({keyword}_code");
    uses.iter().any(|usage| has_word(code, usage))
        || code.starts_with('#') && (code.contains(&lint) || code.contains(&format!("[{keyword}(")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.into(), text: text.to_owned() };
        check(&file).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn wide_lines_are_noticed() {
        assert_eq!(said("a.sh", &"x".repeat(121)), ["a.sh:1: 121 columns: 120 is the most"]);
        assert_eq!(said("a.rs", &format!("// https://{}", "x".repeat(100))), [""; 0]);
        assert_eq!(said("a.md", &"x".repeat(300)), [""; 0]);
    }

    #[test]
    fn words_are_noticed_alone_and_not_inside_others() {
        for (word, _) in FORBIDDEN {
            assert_eq!(said("a.rs", &format!("fn f() {{ {word} }}")).len(), 1, "{word}");
        }
        assert_eq!(said("a.sh", concat!("mktemp d.", "X", "XXXXX")), [""; 0]);
        for path in MACHINE_PATHS {
            assert_eq!(said("a.md", &format!("see `{path}x`")).len(), 1, "{path}");
            assert_eq!(said("a.md", &format!("see some{path}x")), [""; 0]);
        }
    }

    #[test]
    fn unsafe_code_is_kept_to_its_crates_and_explained() {
        let block = concat!("let x = un", "safe { y };\n");
        let lint = concat!("#![allow(un", "safe_code)]\n");
        for code in [block, lint] {
            assert_eq!(said("crates/cache/src/a.rs", code).len(), 1);
            assert_eq!(said("crates/ring/src/a.rs", code).len(), 1);
            let explained = format!("//! UNSAFETY: because.\n{code}");
            assert_eq!(said("crates/ring/src/a.rs", &explained), [""; 0]);
        }
        assert_eq!(said("crates/cache/src/a.rs", concat!("// un", "safe { talk }\n")), [""; 0]);
    }
}
