//! Pages: links lead somewhere, every format is linked, every command a reader is told to type is
//! run.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::finding::Finding;
use super::tree::SourceFile;
use xtask::Failure;
use xtask::fences::{fences, guide_pages};

/// Checks all pages of the tree.
pub(super) fn check(root: &Path, files: &[SourceFile]) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for page in files.iter().filter(|file| file.is("md")) {
        findings.extend(dead_links(page, |target| root.join(target).exists()));
    }
    findings.extend(formats_without_a_link(files));
    for page in guide_pages(root)? {
        let text = fs::read_to_string(&page)?;
        findings.extend(commands_not_run(page.strip_prefix(root)?, &text));
    }
    Ok(findings)
}

/// Link targets of a page with their lines: `[text](target)`, outside of code blocks.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for piece in line.split("](").skip(1) {
            if let Some((target, _)) = piece.split_once(')') {
                found.push((index + 1, target));
            }
        }
    }
    found
}

/// The file a relative link means, from the workspace's root. None for other sites and for places
/// on the same page.
fn target_of(page: &Path, link: &str) -> Option<PathBuf> {
    let file = link.split('#').next().unwrap_or(link);
    if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
        return None;
    }
    let mut target = PathBuf::new();
    for component in page.parent()?.join(file).components() {
        match component {
            Component::ParentDir => {
                target.pop();
            }
            Component::Normal(name) => target.push(name),
            _ => {}
        }
    }
    Some(target)
}

fn dead_links(page: &SourceFile, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let links = links(&page.text).into_iter();
    let dead = links
        .filter(|(_, link)| target_of(&page.path, link).is_some_and(|target| !exists(&target)));
    dead.map(|(line, link)| {
        Finding::new(&page.path, line, format!("the link `{link}` leads nowhere"))
    })
    .collect()
}

fn formats_without_a_link(files: &[SourceFile]) -> Vec<Finding> {
    let formats = files.iter().filter(|file| file.path.starts_with("docs/formats"));
    let lonely = formats.filter(|format| {
        let name = format.path.to_string_lossy();
        !files.iter().filter(|file| file.path != format.path).any(|file| {
            let linked = || {
                let mut links = links(&file.text).into_iter();
                links.any(|(_, link)| target_of(&file.path, link).as_ref() == Some(&format.path))
            };
            file.is("rs") && file.text.contains(name.as_ref()) || file.is("md") && linked()
        })
    });
    lonely
        .map(|format| {
            let message = "nothing links to this format: name it in the code that writes it, and in \
                           ARCHITECTURE.md";
            Finding::new(&format.path, 0, message)
        })
        .collect()
}

fn commands_not_run(page: &Path, text: &str) -> Vec<Finding> {
    let blocks = fences(text);
    let untested = blocks.iter().filter(|block| block.is_shell() && !block.is_run());
    untested
        .map(|block| {
            let message =
                "mark the block `sh run` so that doc-test runs it, or `text` if no test can";
            Finding::new(page, block.line - 1, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn links_are_followed_from_the_page_they_are_on() {
        let page = file(
            "docs/guide/a.md",
            "[b](b.md#x) [top](../../README.md)\n[web](https://a.b) [here](#x)\n\
             ```text\n[code](no.md)\n```\n[gone](gone.md)\n",
        );
        let exists =
            |path: &Path| [Path::new("docs/guide/b.md"), Path::new("README.md")].contains(&path);
        let dead = dead_links(&page, exists);
        let expected = Finding::new(&page.path, 6, "the link `gone.md` leads nowhere");
        assert_eq!(dead, [expected]);
    }

    #[test]
    fn a_format_is_linked_by_a_page_or_named_by_code() {
        let format = || file("docs/formats/log.md", "# The log");
        assert_eq!(formats_without_a_link(&[format()]).len(), 1);
        let page = file("docs/README.md", "[log](formats/log.md)");
        assert!(formats_without_a_link(&[format(), page]).is_empty());
        let code = file("crates/cache/src/log.rs", "//! See docs/formats/log.md.");
        assert!(formats_without_a_link(&[format(), code]).is_empty());
    }

    #[test]
    fn shell_that_is_not_run_is_noticed() {
        let text = "```sh run\nls\n```\n```sh\nrm x\n```\n```text\nsudo y\n```\n";
        let findings = commands_not_run(Path::new("README.md"), text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 4);
    }
}
