//! The text files of the tree that people write.

use std::fs;
use std::path::{Path, PathBuf};

use xtask::Failure;

/// One text file.
pub(super) struct SourceFile {
    /// Relative to the workspace.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl SourceFile {
    /// Whether the file's name ends in `.extension`.
    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

/// The crate or folder that `path` counts for: `array`, `docs/adr`, `xtask`, or `.` for the root.
pub(super) fn area(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    match parts.as_slice() {
        [folder, name, _, ..] if folder == "crates" || folder == "lab" => name.to_string(),
        [folder, name, _, ..] if folder == "docs" => format!("docs/{name}"),
        [folder, _, ..] => folder.to_string(),
        _ => ".".to_owned(),
    }
}

/// Folders that hold what was built, found or downloaded.
const SKIPPED: [&str; 6] = ["target", ".git", "artifacts", "corpus", "coverage", "data"];

const EXTENSIONS: [&str; 6] = ["rs", "md", "sh", "toml", "py", "yml"];

/// Every text file under `root`, in order of path. Generated folders and test data are left out.
pub(super) fn read(root: &Path) -> Result<Vec<SourceFile>, Failure> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_ref()) {
                    folders.push(path);
                }
            } else if kind.is_file() && is_text(&path, &name, root) {
                let text = fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                files.push(SourceFile { path: path.strip_prefix(root)?.to_path_buf(), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn is_text(path: &Path, name: &str, root: &Path) -> bool {
    let known = path.extension().is_some_and(|found| EXTENSIONS.iter().any(|e| found == *e));
    known || name == "Makefile" || path.starts_with(root.join(".ci"))
}
