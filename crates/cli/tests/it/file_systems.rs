//! File systems on a volume, used as people use them, and then the plain disk: by the script that
//! does the same by hand.

use std::path::Path;
use std::process::Command;

#[test]
fn file_systems_a_git_clone_and_a_database_are_whole_on_the_plain_disk() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/proof-filesystems.sh");
    let output = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_voltier"))
        .env("PROOF_SECONDS", "3")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("skipped: ") || said.contains("proved: ext4 xfs"), "{said}");
}
