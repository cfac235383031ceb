//! The options of `voltier export` and `unexport` that say how: one for each kind of export.

use std::ffi::OsStr;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use voltier_control::{
    ControlError, ControlResult, EXPORT_KINDS, ExportKind, ExportSpec, StateDir, VolumeName,
};

/// The first line of the help of `voltier export`.
pub(crate) fn about() -> String {
    format!("Export a volume {}", EXPORT_KINDS.map(|kind| kind.way).join(" or "))
}

/// What the help says of the values of the options.
pub(crate) fn values_help() -> String {
    let known = EXPORT_KINDS.iter().map(|kind| kind.value_help);
    known.filter(|help| !help.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The options in an error about their absence.
pub(crate) fn usage() -> String {
    EXPORT_KINDS.map(ExportKind::usage).join(" or ")
}

/// The word for no export.
const NONE: &str = "none";

/// The help of `--export` of the commands that make a volume.
pub(crate) fn help_of_new() -> String {
    let kinds = EXPORT_KINDS.map(|kind| format!("{} ({})", kind.word, kind.way));
    format!(
        "How the volume is reached: {} or {NONE}; KIND:VALUE is a place of your choice, as fuse:/run/v.raw \
         [default: loop for root, {NONE} for others]",
        kinds.join(", ")
    )
}

/// The export that a new volume gets. Root has a block device where nothing else is asked for.
pub(crate) fn of_new(
    text: Option<&str>,
    state: &StateDir,
    name: &VolumeName,
) -> ControlResult<Option<ExportSpec>> {
    let usual = if rustix::process::geteuid().is_root() { "loop" } else { NONE };
    let text = text.unwrap_or(usual);
    if text == NONE {
        return Ok(None);
    }
    let (word, value) = text.split_once(':').unwrap_or((text, ""));
    let Some(kind) = EXPORT_KINDS.into_iter().find(|kind| kind.word == word) else {
        let kinds = EXPORT_KINDS.map(|kind| kind.word).join(", ");
        return Err(ControlError::usage(format!(
            "`{}` is no kind of export; choose {kinds} or {NONE}",
            word.escape_default()
        )));
    };
    (kind.read)(value, state, name).map(Some)
}

/// The export that the command line names, if it does.
#[derive(Debug)]
pub(crate) struct ExportArg(Option<(&'static ExportKind, std::ffi::OsString)>);

impl ExportArg {
    pub(crate) fn spec(
        &self,
        state: &StateDir,
        name: &VolumeName,
    ) -> ControlResult<Option<ExportSpec>> {
        let Some((kind, value)) = &self.0 else { return Ok(None) };
        let value = value
            .to_str()
            .ok_or_else(|| ControlError::usage("the path is not UTF-8; choose another"))?;
        (kind.read)(value, state, name).map(Some)
    }
}

impl Args for ExportArg {
    fn augment_args(mut command: Command) -> Command {
        for (at, kind) in EXPORT_KINDS.into_iter().enumerate() {
            let option = Arg::new(kind.word).long(kind.word).value_name(kind.value).help(kind.help);
            let option = option.conflicts_with_all(EXPORT_KINDS[..at].iter().map(|it| it.word));
            command = command.arg(if kind.has_default {
                option.num_args(0..=1).default_missing_value("").value_parser(ValueParser::string())
            } else {
                option.value_parser(ValueParser::path_buf())
            });
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ExportArg {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |kind: &'static ExportKind| {
            matches.get_raw(kind.word)?.next().map(OsStr::to_owned).map(|value| (kind, value))
        };
        Ok(Self(EXPORT_KINDS.into_iter().find_map(given)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|given| *self = given)
    }
}
