//! Plans: what is measured, in which order, and when it is enough.
//!
//! A plan is a method by name and its settings. All settings have defaults, a full set and a quick
//! one; a TOML file names the method and what differs:
//!
//! ```toml
//! method = "mixed"
//! size = "1G"
//! reads = [50]
//! ```
//!
//! Reading route: [`Plan`], then one method ([`Pts`] is the longest), then [`step`] for what they
//! expand to.

mod cache_model;
mod clients;
mod composite;
mod database;
mod deviations;
pub mod facts;
mod hotfiles;
mod jobs;
mod maxio;
pub mod maxio_jobs;
mod mixed;
mod orion;
mod pts;
pub mod step;
mod trace;
mod values;

pub use cache_model::CacheModel;
pub use clients::{Clients, Transport};
pub use database::{Database, Engine};
pub use hotfiles::HotFiles;
pub use maxio::Maxio;
pub use mixed::Mixed;
pub use orion::{Matrix, Orion, ladder, settings_of};
pub use pts::Pts;
pub use toml::{Table, Value};
pub use trace::Trace;
pub use values::{ByteSize, Extent};

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use step::{Group, Subject};
use values::unknown;

use crate::LabError;

/// Keys of a plan beside those of its method.
const COMMON: [&str; 3] = ["method", "name", "quick"];

/// A plan, all settings filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the plan: the method's, or that of a file.
    pub name: String,
    /// Whether the plan is the quick form, which says nothing about a drive.
    pub is_quick: bool,
    /// The method of the plan.
    pub method: Method,
}

/// The methods of plans, each with its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// Five jobs of the MaxIO document.
    Maxio(Maxio),
    /// SNIA performance test.
    Pts(Box<Pts>),
    /// Oracle Orion's matrix.
    Orion(Box<Orion>),
    /// Passes over a hot set.
    HotFiles(HotFiles),
    /// A database over a file system.
    Database(Database),
    /// Clients x processes.
    Clients(Clients),
    /// A sweep.
    Mixed(Mixed),
    /// A trace, replayed.
    Trace(Box<Trace>),
}

/// Name and description of the built-in plans.
pub const BUILT_IN: [(&str, &str); 8] = [
    ("maxio", "five jobs of the MaxIO document on a disk, an SSD and the accelerated volume"),
    ("pts", "SNIA PTS: IOPS, TP, LAT, WSAT, HIR, XSR, DIRTH, each until it is steady"),
    ("orion", "Oracle Orion: small x large requests in flight; Orion's own options after --"),
    ("hotfiles", "passes over a hot set, cache off and on: learning curve and acceleration"),
    ("database", "pgbench on PostgreSQL or sysbench on MariaDB over a file system on the target"),
    ("clients", "clients x processes through fio's server mode: scaling and fairness"),
    ("mixed", "any sweep of block sizes, shares of reads (50/50 among them), jobs and depths"),
    ("trace", "a block trace replayed: times kept, scaled, or as fast as possible"),
];

/// `Plan` of a name, with some settings changed. `quick` chooses the quick defaults.
///
/// # Errors
/// One line: no such plan, no such setting (with the nearest), a value that cannot be used.
pub fn built_in(name: &str, quick: bool, changes: &toml::Table) -> Result<Plan, LabError> {
    let mut table = changes.clone();
    table.insert("method".to_owned(), toml::Value::String(name.to_owned()));
    table.entry("quick").or_insert(toml::Value::Boolean(quick));
    from_table(table).map_err(|why| refused(name, why))
}

/// Reads a plan from a TOML file; `changes` go before what it says.
///
/// # Errors
/// One line with the file's name: unreadable, no TOML, an unknown key (with the nearest known one),
/// a value that cannot be used.
pub fn read(path: &Path, quick: bool, changes: &toml::Table) -> Result<Plan, LabError> {
    let text = std::fs::read_to_string(path).map_err(LabError::file(path))?;
    let shown = path.display().to_string();
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        refused(&format!("{shown}, line {line}"), error.message().replace('\n', " "))
    })?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    table.entry("name").or_insert(toml::Value::String(name.unwrap_or_default()));
    if quick {
        table.insert("quick".to_owned(), toml::Value::Boolean(true));
    }
    table.extend(changes.clone());
    from_table(table).map_err(|why| refused(&shown, why))
}

/// The plan whose text [`Plan::text`] gave.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str) -> Result<Plan, LabError> {
    let table = text.parse::<toml::Table>();
    let table = table.map_err(|error| refused("the plan", error.message().to_owned()))?;
    from_table(table).map_err(|why| refused("the plan", why))
}

fn refused(what: &str, why: String) -> LabError {
    LabError::Plan { what: what.to_owned(), why }
}

fn from_table(mut table: toml::Table) -> Result<Plan, String> {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let method = match table.remove("method") {
        Some(toml::Value::String(method)) => method,
        Some(_) => return Err("method: give one of the names of `voltier lab list`".to_owned()),
        None => return Err(format!("it names no method: write method = \"{}\"", names[0])),
    };
    let is_quick = match table.remove("quick") {
        None => false,
        Some(toml::Value::Boolean(quick)) => quick,
        Some(_) => return Err("quick: give true or false".to_owned()),
    };
    let name = match table.remove("name") {
        None => method.clone(),
        Some(toml::Value::String(name)) if !name.is_empty() => name,
        Some(_) => return Err("name: give a text".to_owned()),
    };
    let method = match method.as_str() {
        "maxio" => Method::Maxio(settings(&Maxio::new(is_quick), table, Maxio::check)?),
        "pts" => Method::Pts(Box::new(settings(&Pts::new(is_quick), table, Pts::check)?)),
        "orion" => Method::Orion(Box::new(settings(&Orion::new(is_quick), table, Orion::check)?)),
        "hotfiles" => Method::HotFiles(settings(&HotFiles::new(is_quick), table, HotFiles::check)?),
        "database" => Method::Database(settings(&Database::new(is_quick), table, Database::check)?),
        "clients" => Method::Clients(settings(&Clients::new(is_quick), table, Clients::check)?),
        "mixed" => Method::Mixed(settings(&Mixed::new(is_quick), table, Mixed::check)?),
        "trace" => Method::Trace(Box::new(settings(&Trace::new(is_quick), table, Trace::check)?)),
        other => return Err(unknown("plan", other, &names)),
    };
    Ok(Plan { name, is_quick, method })
}

/// The defaults with `given` over them.
fn settings<T: Serialize + DeserializeOwned>(
    defaults: &T,
    given: toml::Table,
    check: fn(&T) -> Result<(), String>,
) -> Result<T, String> {
    let mut all = toml::Table::try_from(defaults).map_err(|error| error.to_string())?;
    let known: Vec<String> = all.keys().cloned().collect();
    let known: Vec<&str> = known.iter().map(String::as_str).chain(COMMON).collect();
    for (key, value) in given {
        if !known.contains(&key.as_str()) {
            return Err(unknown("key", &key, &known));
        }
        // A setting with a fraction may be given without one.
        let value = match (all.get(&key), value) {
            (Some(toml::Value::Float(_)), toml::Value::Integer(whole)) => {
                toml::Value::Float(whole as f64)
            }
            (_, value) => value,
        };
        let alone = toml::Table::from_iter([(key.clone(), value.clone())]);
        let mut tried = all.clone();
        tried.extend(alone);
        tried
            .clone()
            .try_into::<T>()
            .map_err(|error| format!("{key} = {value}: {}", error.message().replace('\n', " ")))?;
        all = tried;
    }
    let settings: T = all.try_into().map_err(|error| error.message().replace('\n', " "))?;
    check(&settings)?;
    Ok(settings)
}

impl Plan {
    /// The plan as TOML with every setting: [`parse`] gives the same plan back.
    pub fn text(&self) -> String {
        let of = |settings: Result<toml::Table, toml::ser::Error>| settings.unwrap_or_default();
        let (method, settings) = match &self.method {
            Method::Maxio(plan) => ("maxio", of(toml::Table::try_from(plan))),
            Method::Pts(plan) => ("pts", of(toml::Table::try_from(plan))),
            Method::Orion(plan) => ("orion", of(toml::Table::try_from(plan))),
            Method::HotFiles(plan) => ("hotfiles", of(toml::Table::try_from(plan))),
            Method::Database(plan) => ("database", of(toml::Table::try_from(plan))),
            Method::Clients(plan) => ("clients", of(toml::Table::try_from(plan))),
            Method::Mixed(plan) => ("mixed", of(toml::Table::try_from(plan))),
            Method::Trace(plan) => ("trace", of(toml::Table::try_from(plan))),
        };
        let mut table = settings;
        table.insert("method".to_owned(), toml::Value::String(method.to_owned()));
        table.insert("name".to_owned(), toml::Value::String(self.name.clone()));
        table.insert("quick".to_owned(), toml::Value::Boolean(self.is_quick));
        table.to_string()
    }

    /// The title of the plan in reports. A quick form is never called PTS.
    pub fn title(&self) -> String {
        match (&self.method, self.is_quick) {
            (Method::Pts(_), true) => {
                format!("{} (quick profile: not a PTS result)", self.name)
            }
            (_, true) => format!("{} (quick profile)", self.name),
            (_, false) => self.name.clone(),
        }
    }

    /// How much of each target is used.
    pub fn extent(&self) -> Extent {
        match &self.method {
            Method::Maxio(plan) => plan.size,
            Method::Pts(plan) => plan.size,
            Method::Orion(plan) => plan.size,
            Method::HotFiles(plan) => Extent::Bytes(plan.size_bytes()),
            Method::Database(plan) => plan.size,
            Method::Clients(plan) => plan.size,
            Method::Mixed(plan) => plan.size,
            Method::Trace(plan) => plan.size,
        }
    }

    /// Whether all targets together are what is measured.
    pub fn is_joint(&self) -> bool {
        matches!(self.method, Method::Orion(_))
    }

    /// Everything it measures, in order.
    ///
    /// # Errors
    /// One line when a trace cannot be read, or does not fit on a target.
    pub fn groups(&self, subjects: &[Subject]) -> Result<Vec<Group>, LabError> {
        Ok(match &self.method {
            Method::Maxio(plan) => plan.groups(subjects),
            Method::Pts(plan) => plan.groups(subjects),
            Method::Orion(plan) => plan.groups(subjects),
            Method::HotFiles(plan) => plan.groups(subjects),
            Method::Database(plan) => plan.groups(subjects),
            Method::Clients(plan) => plan.groups(subjects),
            Method::Mixed(plan) => plan.groups(subjects),
            Method::Trace(plan) => return plan.groups(subjects),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> toml::Table {
        toml::Table::new()
    }

    #[test]
    fn every_built_in_plan_survives_its_own_text() {
        for (name, _) in BUILT_IN {
            for quick in [false, true] {
                let plan = built_in(name, quick, &none()).unwrap();
                assert_eq!(parse(&plan.text()).unwrap(), plan, "{}", plan.text());
            }
        }
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        for (text, said) in [
            ("method = \"pts\"\nsecnds = 3\n", "unknown key `secnds`: did you mean `seconds`?"),
            ("method = \"ptss\"\n", "unknown plan `ptss`: did you mean `pts`?"),
            ("seconds = 3\n", "it names no method"),
            ("method = \"pts\"\nseconds = \n", "line 2"),
            ("method = \"pts\"\nseconds = \"x\"\n", "seconds = \"x\""),
            ("method = \"pts\"\ntests = [\"iop\"]\n", "did you mean `iops`?"),
            ("method = \"mixed\"\nreads = [101]\n", "101 is no percentage"),
            ("method = \"mixed\"\nblock_sizes = [\"4X\"]\n", "`4X` is no size"),
            ("method = \"mixed\"\nseconds = 0\n", "seconds = 0"),
            ("method = \"clients\"\ntransport = \"hosts\"\n", "hosts has 0"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = read(&path, false, &none()).unwrap_err().to_string();
            assert!(message.contains(said), "{text:?}: {message}");
            assert!(message.contains("mine.toml"), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn what_a_file_says_goes_before_defaults_and_what_the_command_says_before_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "method = \"mixed\"\nseconds = 7\nreads = [50]\n").unwrap();
        let mut changes = none();
        changes.insert("seconds".to_owned(), toml::Value::Integer(9));
        let plan = read(&path, true, &changes).unwrap();
        assert_eq!((plan.name.as_str(), plan.is_quick), ("mine", true));
        let Method::Mixed(mixed) = &plan.method else { panic!("mixed") };
        assert!((mixed.seconds - 9.0).abs() < 1e-9);
        assert_eq!(mixed.reads, [50]);
        assert_eq!(mixed.depths, [1, 4, 16]);
    }

    #[test]
    fn the_quick_form_is_never_called_pts_alone() {
        let title = built_in("pts", true, &none()).unwrap().title();
        assert!(title.contains("not a PTS result"), "{title}");
    }
}
