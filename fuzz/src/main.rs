//! The engine's way in: libFuzzer, on the target that `VOLTIER_FUZZ_TARGET` names.
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

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
