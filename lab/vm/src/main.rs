//! `cargo xtask vm`: Debian boots in QEMU with the product installed as the guide says, and lives through
//! what machines live through. Processes alone cannot show that a unit stops in order. Nor do they show
//! that a rule of udev acts before LVM does, or that a block outlives the power.
//!
//! - [`image`]: Debian's packages as a root file system, made once
//! - [`drives`]: drives with a write cache that a power cut empties
//! - [`machine`], [`agent`], [`qmp`]: one boot of QEMU, scripts inside of it, the hands on its plugs
//! - [`world`]: the drives and the machine over all boots
//! - [`scenarios`]: what happens, and what must be so afterwards

mod agent;
mod drives;
mod guide;
mod image;
mod machine;
mod patience;
mod qmp;
mod scenarios;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = chosen.iter().find(|name| !scenarios::NAMES.contains(&name.as_str())) {
        eprintln!(
            "there is no scenario {unknown}; the scenarios are: {}",
            scenarios::NAMES.join(", ")
        );
        return ExitCode::from(2);
    }
    xtask::exit_code(scenarios::run(&chosen))
}
