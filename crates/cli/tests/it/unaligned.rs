//! Clients that know no sectors, through the real binary: bytes of one sector by several ways at once.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;

use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB};

const SECTOR_BYTES: u64 = 512;
const SECTORS: u64 = 64;
const ROUNDS: u8 = 8;

/// A volume `v` with a cache that writes back.
fn instance() -> Instance {
    let instance = Instance::new();
    let (hdd, ssd) = (instance.drive("hdd", 64 * MIB), instance.drive("ssd", 32 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance
}

/// Writes the same part of every sector, again and again.
fn write_parts(part: std::ops::Range<u64>, mut write: impl FnMut(u64, &[u8])) {
    for round in 1..=ROUNDS {
        for sector in 0..SECTORS {
            let data = vec![round; (part.end - part.start) as usize];
            write(sector * SECTOR_BYTES + part.start, &data);
        }
    }
}

#[track_caller]
fn all_parts_are_there(instance: &Instance) {
    let mut client = instance.connect("v");
    let all = client.read(0, (SECTORS * SECTOR_BYTES) as usize).unwrap();
    let lost = all.iter().position(|byte| *byte != ROUNDS);
    assert_eq!(lost, None, "the first byte that a writer lost to another one");
}

#[test]
fn connections_to_two_sockets_lose_none_of_each_others_bytes() {
    let instance = instance();
    instance.export("v");
    let second = instance.path("second.sock");
    instance.run(&["export", "v", "--nbd", &format!("unix:{}", second.display())]).ok();
    let first = instance.socket("v");
    thread::scope(|scope| {
        for (socket, part) in [(&first, 0..100), (&first, 100..300), (&second, 300..512)] {
            let mut client = NbdClient::connect(socket, "v").unwrap();
            let write = move |at, data: &[u8]| client.write(at, data).unwrap();
            scope.spawn(move || write_parts(part, write));
        }
    });
    all_parts_are_there(&instance);
}

#[test]
fn a_file_and_a_socket_lose_none_of_each_others_bytes() {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let instance = instance();
    instance.export("v");
    let path = instance.path("v.raw");
    instance.run(&["export", "v", "--fuse", path.to_str().unwrap()]).ok();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut client = instance.connect("v");
    thread::scope(|scope| {
        scope.spawn(|| write_parts(0..300, |at, data| file.write_all_at(data, at).unwrap()));
        scope.spawn(move || write_parts(300..512, |at, data| client.write(at, data).unwrap()));
    });
    drop(file);
    all_parts_are_there(&instance);
}

#[test]
fn an_image_of_an_odd_length_is_copied_in_and_comes_back_from_the_disk() {
    if Command::new("nbdcopy").arg("--version").output().is_err() {
        println!("skipped: there is no nbdcopy");
        return;
    }
    let instance = instance();
    let uri = instance.export("v");
    let image: Vec<u8> =
        (0..1_000_003_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = instance.path("image");
    fs::write(&path, &image).unwrap();
    let copied = Command::new("nbdcopy").arg(&path).arg(&uri).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    instance.run(&["flush", "v"]).ok();
    let disk = fs::read(instance.path("hdd")).unwrap();
    assert!(disk[..image.len()] == image[..] && disk[image.len()..].iter().all(|byte| *byte == 0));
}
