//! The guide's own commands: the scenarios type what a reader would type.

use std::fs;

use xtask::{Failure, fences, workspace};

/// The block of a page of the guide that has these words.
///
/// # Errors
/// When no block has them: the page changed, and the scenario has to.
pub(crate) fn block_with(page: &str, words: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(workspace::root().join("docs/guide").join(page))?;
    let mut found = fences::fences(&text).into_iter().filter(|it| it.body.contains(words));
    let block = found.next().ok_or_else(|| format!("no block of {page} has `{words}`"))?;
    Ok(block.body)
}
