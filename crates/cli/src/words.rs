//! The words of a command line: what the program `voltier-lab` tells `voltier`, whose completions have the verbs of
//! both.

use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};

/// A verb with its options and the verbs below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    name: String,
    about: String,
    options: Vec<OptionWords>,
    verbs: Vec<Words>,
}

/// An option or a positional value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OptionWords {
    id: String,
    long: Option<String>,
    short: Option<char>,
    help: String,
    takes_value: bool,
    for_all_verbs: bool,
    values: Vec<String>,
}

impl Words {
    /// The words of a command line, without what help hides.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let text = |help: Option<&clap::builder::StyledStr>| {
            help.map(ToString::to_string).unwrap_or_default()
        };
        let option = |arg: &Arg| OptionWords {
            id: arg.get_id().to_string(),
            long: arg.get_long().map(str::to_owned),
            short: arg.get_short(),
            help: text(arg.get_help()),
            takes_value: arg.get_action().takes_values(),
            for_all_verbs: arg.is_global_set(),
            values: arg.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect(),
        };
        Self {
            name: command.get_name().to_owned(),
            about: text(command.get_about()),
            options: command.get_arguments().filter(|it| is_told(it)).map(option).collect(),
            verbs: command.get_subcommands().filter(|it| !it.is_hide_set()).map(Self::of).collect(),
        }
    }

    /// The verbs, each as a command line of its own.
    #[must_use]
    pub fn into_verbs(self) -> Vec<Command> {
        self.verbs.into_iter().map(Self::into_command).collect()
    }

    /// The command line of these words. It lasts as long as the program does, which ends soon.
    #[must_use]
    pub fn into_command(self) -> Command {
        let arguments = self.options.into_iter().map(|it| {
            let action = if it.takes_value { ArgAction::Set } else { ArgAction::SetTrue };
            let mut arg =
                Arg::new(&*it.id.leak()).action(action).help(it.help).global(it.for_all_verbs);
            if let Some(long) = it.long {
                arg = arg.long(&*long.leak());
            }
            if let Some(short) = it.short {
                arg = arg.short(short);
            }
            if !it.values.is_empty() {
                arg = arg.value_parser(
                    it.values.into_iter().map(|it| &*it.leak()).collect::<Vec<&'static str>>(),
                );
            }
            arg
        });
        let verbs = self.verbs.into_iter().map(Self::into_command);
        Command::new(&*self.name.leak()).about(self.about).args(arguments).subcommands(verbs)
    }
}

/// Whether completions are told of an option: every command has its own help and version.
fn is_told(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_command_line_that_they_are_of() {
        let run = Command::new("run")
            .about("Runs a plan")
            .arg(Arg::new("plan").help("The plan"))
            .arg(Arg::new("size").long("size").short('s').help("How much"))
            .arg(Arg::new("kind").long("kind").value_parser(["a", "b"]))
            .arg(Arg::new("now").long("now").action(ArgAction::SetTrue).global(true));
        let lab = Command::new("lab").about("Measures").subcommand(run);
        let hidden = Command::new("words").hide(true);
        let program = Command::new("voltier").subcommand(lab.clone()).subcommand(hidden);
        let words = Words::of(&program);
        let text = serde_json::to_string(&words).unwrap();
        let read: Words = serde_json::from_str(&text).unwrap();
        assert_eq!(read, words);
        let verbs = read.into_verbs();
        assert_eq!(verbs.iter().map(Words::of).collect::<Vec<_>>(), [Words::of(&lab)]);
    }
}
