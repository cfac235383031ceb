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
