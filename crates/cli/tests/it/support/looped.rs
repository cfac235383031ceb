//! Loop devices over the files of a test.
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

use std::process::Command;

/// A loop device that ends with the value.
pub struct Looped(pub String);

impl Looped {
    /// `None`, aloud, where this user makes no loop devices.
    pub fn new(path: &str) -> Option<Self> {
        Self::with(&[path])
    }

    /// The same with options of `losetup`.
    pub fn with(args: &[&str]) -> Option<Self> {
        let make = || {
            let made = Command::new("losetup").args(["--find", "--show"]).args(args).output().ok();
            made.filter(|made| made.status.success())
        };
        let mut made = make();
        for _ in 0..10 {
            if made.is_none() {
                // Somebody else may have taken the free one that it found.
                std::thread::park_timeout(std::time::Duration::from_millis(20));
                made = make();
            }
        }
        match made {
            Some(made) => Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())),
            None => {
                eprintln!("left out: this user makes no loop devices here");
                None
            }
        }
    }

    /// Has the kernel call it read-only, or not.
    pub fn protect(&self, is_protected: bool) {
        let flag = if is_protected { "--setro" } else { "--setrw" };
        let set = Command::new("blockdev").args([flag, &self.0]).status().unwrap();
        assert!(set.success());
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        // The next user of the number would find it read-only.
        let _ = Command::new("blockdev").args(["--setrw", &self.0]).status();
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
