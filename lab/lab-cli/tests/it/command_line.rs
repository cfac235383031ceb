//! The command line as a contract: help, wrong usage, exit codes, one-line errors.

use crate::support::Instance;

#[test]
fn help_is_of_the_command_that_the_user_typed() {
    let instance = Instance::new();
    for verb in ["lab", "demo"] {
        let own = instance.run(&[verb, "--help"]).ok();
        assert!(own.out.contains(&format!("Usage: voltier {verb}")), "{}", own.out);
    }
    assert!(!instance.state().exists(), "help starts nothing");
}

#[test]
fn wrong_usage_is_one_line_with_a_hint_and_exit_code_two() {
    let instance = Instance::new();
    instance.run(&["lab"]).refused(2, "--help");
    instance.run(&["lab", "twin", "maxo"]).refused(2, "use one of maxio");
    assert!(!instance.state().exists(), "wrong usage starts nothing");
}
