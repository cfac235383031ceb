//! Files that are imported together, and the manifest of their figures.

use std::collections::BTreeMap;

use crate::result::{Environment, Manifest, TargetInfo};

/// Files by name, as they lie beside each other.
pub type Files = BTreeMap<String, String>;

/// A manifest of imported figures.
pub(super) fn manifest(tool: &str, targets: Vec<TargetInfo>) -> Manifest {
    let fio = if tool.starts_with("fio") { tool } else { "" };
    Manifest {
        plan: "import".to_owned(),
        tool: tool.to_owned(),
        imported_from: Some(String::new()),
        targets,
        environment: Environment { fio: fio.to_owned(), ..Environment::default() },
        ..Manifest::default()
    }
}

/// A target by the name that the file gives.
pub(super) fn target(name: &str, given: &str) -> TargetInfo {
    let kind = "import".to_owned();
    let (name, given) = (name.to_owned(), given.to_owned());
    TargetInfo { name, given, kind, ..TargetInfo::default() }
}
