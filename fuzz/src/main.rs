//! The engine's way in: libFuzzer, on the target that `VOLTIER_FUZZ_TARGET` names. With `VOLTIER_FUZZ_WORDS` it
//! prints words for that target and ends.
//!
//! Built and started by `scripts/fuzz.sh`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use voltier_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("VOLTIER_FUZZ_TARGET").unwrap_or_default();
    voltier_fuzz::find(&name).unwrap_or_else(|| panic!("no fuzz target `{name}`"))
});

fuzz_target!(
    init: {
        if std::env::var_os("VOLTIER_FUZZ_WORDS").is_some() {
            print!("{}", voltier_fuzz::dictionary(TARGET.name));
            std::process::exit(0);
        }
    },
    |input: &[u8]| (TARGET.run)(input)
);
