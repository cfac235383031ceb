//! Progress of a run: a bar with the time left on a terminal, a line at every tenth otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use voltier_lab::run::in_words;

/// Steps of known length, one after the other: a bar with the time left on a terminal, a line at
/// every tenth otherwise.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    tenths: u128,
}

impl Steps {
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: None, tenths: 0 };
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "[{bar:30}] {percent}%, {prefix} left  {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar: Some(bar), tenths: 0 }
    }

    /// A line above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// How far it is: planned times of what is done and of all.
    pub(crate) fn at(&mut self, done: Duration, total: Duration, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total.as_millis() as u64);
            bar.set_position(done.as_millis() as u64);
            bar.set_prefix(in_words(total.saturating_sub(done)));
            bar.set_message(what.to_owned());
            return;
        }
        let now = (done.as_millis() * 10).checked_div(total.as_millis()).unwrap_or(0);
        if now > self.tenths && done < total {
            self.tenths = now;
            eprintln!("{} % done, about {} left", now * 10, in_words(total.saturating_sub(done)));
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
