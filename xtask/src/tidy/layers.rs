//! The layers say which crate may name which: `export -> volume -> {cache, array, drive} -> {ring,
//! parity, nbd, librbd} -> block`. The control plane may name the data path, never the reverse. The laboratory may
//! name both, and neither names the laboratory, not in tests either: `cargo build` and `cargo test` take the
//! folder `crates`, and compile nothing of the folder `lab`. Only tests name `sim`.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use xtask::Failure;
use xtask::workspace::{Metadata, Package};

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// The data path; a crate may name those of a smaller number only.
    DataPath(u8),
    /// Beside the data path: may name all of it, and its own kind.
    Control,
    /// The laboratory and the tools of the repository: may name the data path and the control plane.
    Laboratory,
    /// Worlds for tests: may name the data path and the control plane; named by tests only.
    Sim,
    /// The fuzz targets: may name everything; named by nobody.
    Fuzz,
}

fn layer(name: &str) -> Option<Layer> {
    Some(match name {
        "voltier-block" => Layer::DataPath(0),
        "voltier-ring" | "voltier-parity" | "voltier-keeper" | "voltier-nbd" | "voltier-librbd" => {
            Layer::DataPath(1)
        }
        "voltier-deadline" => Layer::DataPath(2),
        "voltier-cache" | "voltier-array" | "voltier-drive" => Layer::DataPath(3),
        "voltier-volume" => Layer::DataPath(4),
        "voltier-export" => Layer::DataPath(5),
        "voltier" | "voltier-control" | "voltier-cores" => Layer::Control,
        "voltier-results" | "voltier-trace" | "voltier-lab" | "voltier-lab-cli"
        | "voltier-bench" | "voltier-tasks" | "voltier-vm" | "xtask" => Layer::Laboratory,
        "voltier-sim" | "voltier-filter" | "voltier-librbd-fake" => Layer::Sim,
        "voltier-fuzz" => Layer::Fuzz,
        _ => return None,
    })
}

/// Why `from` may not name `to`, if it may not.
fn breach(from: &str, to: &str) -> Option<String> {
    let Some(from_layer) = layer(from) else {
        return Some(format!(
            "{from} has no place in the layers: add it to xtask/src/tidy/layers.rs"
        ));
    };
    let why = match (from_layer, layer(to)?) {
        (_, Layer::Fuzz) => "nothing may name the fuzz targets",
        (Layer::Fuzz, _) => return None,
        (_, Layer::Sim) => "only tests may name the simulator: make it a dev-dependency",
        (Layer::DataPath(_), Layer::Control) => "the data path may not name the control plane",
        (Layer::DataPath(_) | Layer::Control | Layer::Sim, Layer::Laboratory) => {
            "the daemon contains no laboratory: `voltier lab` runs the program voltier-lab"
        }
        (Layer::DataPath(above), Layer::DataPath(below)) if below >= above => {
            "the order is export -> volume -> {cache, array, drive} -> deadline -> {ring, parity, nbd, \
             librbd} -> block"
        }
        _ => return None,
    };
    Some(format!("{from} may not depend on {to}: {why}"))
}

/// Why tests of `from` may not name `to`, if they may not. They are free but for the laboratory.
fn breach_of_tests(from: &str, to: &str) -> Option<String> {
    let is_lab = |name| matches!(layer(name), Some(Layer::Laboratory | Layer::Fuzz));
    (is_lab(to) && !is_lab(from))
        .then(|| format!("tests of {from} may not name {to}: `cargo test` compiles no laboratory"))
}

/// Why a crate may not lie where it lies, if it may not. Those of the folder `crates` are what cargo takes
/// without a choice of packages.
fn misplaced(name: &str, manifest: &Path, is_default: bool) -> Option<String> {
    let (is_in_crates, is_in_lab) = (manifest.starts_with("crates"), manifest.starts_with("lab"));
    let is_lab = layer(name)? == Layer::Laboratory;
    if is_lab && is_in_crates || !is_lab && is_in_lab {
        return Some("the laboratory and its tools are in lab/, and all else is not".to_owned());
    }
    (is_in_crates != is_default)
        .then(|| "the default members in Cargo.toml are the crates of crates/".to_owned())
}

/// Checks every crate's manifest.
pub(super) fn check(root: &Path, metadata: &Metadata) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
        if layer(&package.name).is_none() {
            findings.extend(breach(&package.name, "").map(|why| Finding::new(path, 0, why)));
        }
        findings.extend(breaches(package).map(|why| Finding::new(path, 0, why)));
        let is_default = metadata.workspace_default_members.contains(&package.id);
        let misplaced = misplaced(&package.name, path, is_default);
        findings.extend(misplaced.map(|why| Finding::new(path, 0, why)));
        let loggers = package.dependencies.iter();
        let loggers = loggers.filter_map(|it| logger_below(&package.name, &it.name));
        findings.extend(loggers.map(|why| Finding::new(path, 0, why)));
        if !has_workspace_lints(&fs::read_to_string(&package.manifest_path)?) {
            let message = "add the workspace's lints: [lints] with workspace = true";
            findings.push(Finding::new(path, 0, message));
        }
    }
    Ok(findings)
}

/// A logger that the data path would name: it reports, and the control plane logs.
fn logger_below(package: &str, dependency: &str) -> Option<String> {
    let is_logger = dependency == "log" || dependency.starts_with("tracing");
    (is_logger && matches!(layer(package)?, Layer::DataPath(_)))
        .then(|| format!("{package} may not depend on {dependency}: the data path has no logger"))
}

fn breaches(package: &Package) -> impl Iterator<Item = String> {
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.filter_map(|dependency| {
        layer(&package.name)?;
        let is_of_tests = dependency.kind.as_deref() == Some("dev");
        let breach = if is_of_tests { breach_of_tests } else { breach };
        breach(&package.name, &dependency.name)
    })
}

fn has_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')) == Some("workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependency_rule_is_the_one_of_the_architecture() {
        let allowed = [
            ("voltier-export", "voltier-volume"),
            ("voltier-export", "voltier-block"),
            ("voltier-volume", "voltier-cache"),
            ("voltier-cache", "voltier-ring"),
            ("voltier-cache", "voltier-deadline"),
            ("voltier-deadline", "voltier-ring"),
            ("voltier-array", "voltier-parity"),
            ("voltier-ring", "voltier-block"),
            ("voltier-control", "voltier-export"),
            ("voltier-control", "voltier-volume"),
            ("voltier-cores", "voltier-export"),
            ("voltier", "voltier-cores"),
            ("voltier-lab-cli", "voltier-lab"),
            ("voltier-lab-cli", "voltier"),
            ("voltier-trace", "voltier-cache"),
            ("voltier-bench", "voltier-array"),
            ("voltier-tasks", "voltier-lab"),
            ("voltier-sim", "voltier-volume"),
            ("voltier-sim", "voltier-control"),
            ("voltier-fuzz", "voltier-sim"),
            ("voltier-fuzz", "voltier-control"),
        ];
        for (from, to) in allowed {
            assert_eq!(breach(from, to), None);
        }
        let forbidden = [
            ("voltier-volume", "voltier-export"),
            ("voltier-cache", "voltier-drive"),
            ("voltier-cache", "voltier-array"),
            ("voltier-parity", "voltier-ring"),
            ("voltier-block", "voltier-ring"),
            ("voltier-cache", "voltier-control"),
            ("voltier-export", "voltier-lab"),
            ("voltier", "voltier-lab"),
            ("voltier-control", "voltier-results"),
            ("voltier-control", "voltier-sim"),
            ("voltier-sim", "voltier-trace"),
            ("xtask", "voltier-sim"),
            ("voltier-control", "voltier-fuzz"),
            ("voltier-new", "voltier-block"),
        ];
        for (from, to) in forbidden {
            assert!(breach(from, to).is_some(), "{from} -> {to}");
        }
    }

    #[test]
    fn tests_are_free_but_for_the_laboratory() {
        assert_eq!(breach_of_tests("voltier-array", "voltier-sim"), None);
        assert_eq!(breach_of_tests("voltier-cache", "voltier-drive"), None);
        assert_eq!(breach_of_tests("voltier-trace", "voltier-results"), None);
        assert!(breach_of_tests("voltier", "voltier-lab").is_some());
        assert!(breach_of_tests("voltier-sim", "voltier-results").is_some());
    }

    #[test]
    fn the_laboratory_is_in_its_folder_and_no_default() {
        let said = |name, at, is_default| misplaced(name, Path::new(at), is_default).is_some();
        assert!(!said("voltier-cache", "crates/cache/Cargo.toml", true));
        assert!(!said("voltier-lab", "lab/lab/Cargo.toml", false));
        assert!(!said("xtask", "xtask/Cargo.toml", false));
        assert!(!said("voltier-fuzz", "fuzz/Cargo.toml", false));
        assert!(said("voltier-cache", "lab/cache/Cargo.toml", false));
        assert!(said("voltier-cache", "crates/cache/Cargo.toml", false));
        assert!(said("voltier-lab", "crates/lab/Cargo.toml", true));
        assert!(said("voltier-lab", "lab/lab/Cargo.toml", true));
    }

    #[test]
    fn only_the_data_path_may_not_log() {
        assert!(logger_below("voltier-array", "tracing").is_some());
        assert!(logger_below("voltier-cores", "tracing").is_none());
        assert!(logger_below("voltier-array", "rustix").is_none());
    }

    #[test]
    fn lints_that_are_not_the_workspaces_are_noticed() {
        assert!(has_workspace_lints("[package]\n\n[lints]\n# why\nworkspace = true\n"));
        assert!(!has_workspace_lints("[package]\nname = \"x\"\n"));
        assert!(!has_workspace_lints("[lints]\n[dependencies]\nworkspace = true\n"));
    }
}
