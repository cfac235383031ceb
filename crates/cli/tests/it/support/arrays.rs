//! An array `a` with a volume `v` over it, and what its clients write and find.
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

use serde_json::Value;

use super::Instance;
pub use super::MIB;
use super::nbd::NbdClient;

const BLOCKS: u64 = 200;
pub const BLOCK_BYTES: usize = 6144;

/// So many sparse files of 32 MiB, called by a prefix and a number.
pub fn drives(instance: &Instance, prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| instance.drive(&format!("{prefix}{number}"), 32 * MIB)).collect()
}

/// `array VERB ARGS... DEV...`.
pub fn with<'a>(args: &[&'a str], devices: &'a [String]) -> Vec<&'a str> {
    let devices = devices.iter().map(String::as_str);
    ["array"].into_iter().chain(args.iter().copied()).chain(devices).collect()
}

/// An instance with a volume `v` over an array `a`, exported, and the array's members.
pub fn array_volume(level: &[&str], count: usize) -> (Instance, Vec<String>) {
    let instance = Instance::new();
    let devices = drives(&instance, "d", count);
    instance.run(&with(&[&["create", "a", "--level"], level].concat(), &devices)).ok();
    export(&instance);
    (instance, devices)
}

/// Makes a volume `v` over the array `a`, and exports it.
pub fn export(instance: &Instance) {
    instance.run(&["create", "-p", "array:a", "v"]).ok();
    instance.export("v");
}

pub fn client(instance: &Instance) -> NbdClient {
    instance.connect("v")
}

/// A client of the next daemon.
pub fn after_start(instance: &Instance) -> NbdClient {
    assert_eq!(instance.show("v")["state"], "running", "{:?}", instance.show("v"));
    client(instance)
}

/// The array `a` as `array show` prints it.
pub fn array(instance: &Instance) -> Value {
    array_called(instance, "a")
}

pub fn array_called(instance: &Instance, name: &str) -> Value {
    instance.serve();
    instance.run(&["array", "show", name, "--json"]).shown()
}

/// Writes blocks over a part of the volume, in an odd pattern, and flushes.
pub fn fill(nbd: &mut NbdClient, seed: u8) {
    for block in 0..BLOCKS {
        nbd.write(block * 40960 + 512, &[seed ^ block as u8; BLOCK_BYTES]).unwrap();
    }
    nbd.flush().unwrap();
}

#[track_caller]
pub fn holds(nbd: &mut NbdClient, seed: u8) {
    for block in 0..BLOCKS {
        let found = nbd.read(block * 40960 + 512, BLOCK_BYTES).unwrap();
        assert_eq!(found, [seed ^ block as u8; BLOCK_BYTES], "block {block}");
    }
}
