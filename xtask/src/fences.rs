//! Fenced code blocks of Markdown files, and which of them are run.

use std::path::{Path, PathBuf};

use crate::Failure;

/// One fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Fence {
    /// The words behind the opening backticks: `sh run`, `json`, nothing.
    pub info: String,
    /// Line number of the first line inside, from 1.
    pub line: usize,
    /// The lines inside.
    pub body: String,
}

impl Fence {
    /// Whether the fence is shell for a reader to type.
    pub fn is_shell(&self) -> bool {
        matches!(self.info.split_whitespace().next(), Some("sh" | "bash" | "shell"))
    }

    /// Whether `doc-test` runs it: the word `run` after the language.
    pub fn is_run(&self) -> bool {
        self.is_shell() && self.info.split_whitespace().nth(1) == Some("run")
    }

    /// Whether it runs only where volumes can be block devices: the word `root` after `run`.
    pub fn needs_devices(&self) -> bool {
        self.info.split_whitespace().nth(2) == Some("root")
    }
}

/// All fenced blocks of a Markdown text, in order.
pub fn fences(text: &str) -> Vec<Fence> {
    let mut found: Vec<Fence> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), inside) {
            (Some(info), false) => {
                inside = true;
                let info = info.trim_start_matches('`').trim().to_owned();
                found.push(Fence { info, line: index + 2, body: String::new() });
            }
            (Some(_), true) => inside = false,
            (None, true) => {
                let fence = found.last_mut().expect("inside a block");
                fence.body.push_str(line);
                fence.body.push('\n');
            }
            (None, false) => {}
        }
    }
    found
}

/// The files whose commands a reader will type: README.md and the pages of docs/guide.
pub fn guide_pages(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut pages = vec![root.join("README.md")];
    let guide = root.join("docs/guide");
    if guide.is_dir() {
        for entry in std::fs::read_dir(guide)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.retain(|page| page.is_file());
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_place_and_kind() {
        let text = "# A\n\n```sh run\nvoltier show\n```\ntext\n```json\n{}\n```\n```sh\nls\n```\n";
        let found = fences(text);
        assert_eq!(found.len(), 3);
        assert_eq!(
            found[0],
            Fence { info: "sh run".into(), line: 4, body: "voltier show\n".into() }
        );
        assert!(found[0].is_run());
        assert!(!found[1].is_shell());
        assert!(found[2].is_shell() && !found[2].is_run());
    }
}
