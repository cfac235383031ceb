//! The layers say which crate may name which: `export -> volume -> {cache, array, drive} -> {ring,
//! parity} -> block`. The control plane may name the data path, never the reverse. The laboratory may
//! name both, and neither names the laboratory. Only tests name `sim`.

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
        "voltier-ring" | "voltier-parity" => Layer::DataPath(1),
        "voltier-deadline" => Layer::DataPath(2),
        "voltier-cache" | "voltier-array" | "voltier-drive" => Layer::DataPath(3),
        "voltier-volume" => Layer::DataPath(4),
        "voltier-export" => Layer::DataPath(5),
        "voltier" | "voltier-control" | "voltier-cores" => Layer::Control,
        "voltier-results" | "voltier-trace" | "voltier-lab" | "voltier-lab-cli"
        | "voltier-bench" | "voltier-tasks" | "voltier-vm" | "xtask" => Layer::Laboratory,
        "voltier-sim" | "voltier-filter" => Layer::Sim,
        "voltier-fuzz" => Layer::Fuzz,
        _ => return None,
    })
}

/// Why `from` may not name `to`, if it may not. Dependencies of tests are free.
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
        (Layer::DataPath(_) | Layer::Control, Layer::Laboratory) => {
            "the daemon contains no laboratory: `voltier lab` runs the program voltier-lab"
        }
        (Layer::DataPath(above), Layer::DataPath(below)) if below >= above => {
            "the order is export -> volume -> {cache, array, drive} -> deadline -> {ring, parity} \
             -> block"
        }
        _ => return None,
    };
    Some(format!("{from} may not depend on {to}: {why}"))
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
    let shipped = package.dependencies.iter().filter(|dependency| {
        dependency.path.is_some() && dependency.kind.as_deref() != Some("dev")
    });
    shipped.filter_map(|dependency| {
        layer(&package.name)?;
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
            ("xtask", "voltier-sim"),
            ("voltier-control", "voltier-fuzz"),
            ("voltier-new", "voltier-block"),
        ];
        for (from, to) in forbidden {
            assert!(breach(from, to).is_some(), "{from} -> {to}");
        }
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
