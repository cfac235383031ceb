//! The power goes while programs write.

use std::collections::BTreeMap;
use std::io::BufRead;

use xtask::Failure;

use super::checks::{self, FIRST_ORDER, MOUNTS, ensure};
use crate::world::World;

/// Acknowledged files before the cut.
const ACKS: usize = 60;

/// Writes new files, and one file in place. The host hears of all that was synced: path and checksum.
const WRITER: &str = r#"
exec 4>/dev/virtio-ports/voltier.acks
for ((i = 0; ; i++)); do
  for mount in /srv/data /srv/safe; do
    file=$mount/cut/$i
    head -c $((RANDOM + 1)) /dev/urandom >$file
    sync $file $mount/cut
    echo "$file $(sha256sum <$file | cut -c1-64)" >&4
    printf '%4096d' $i | dd of=$mount/cut/count conv=notrunc,fsync status=none
    echo "$mount/cut/count $i" >&4
  done
done
"#;

/// Every file whose sync had ended is there after the cut, byte for byte, and nobody's help is needed.
pub(super) fn keeps_what_was_synced(world: &mut World) -> Result<(), Failure> {
    let [data, safe] = MOUNTS;
    world.run(&format!("mkdir -p {data}/cut {safe}/cut; sync"))?;
    world.run(&format!(
        "cat >/run/writer <<'END'\n{WRITER}END\nsystemd-run -q --unit=writer bash /run/writer"
    ))?;
    let (mut files, mut counts) = (BTreeMap::new(), BTreeMap::new());
    while files.len() < ACKS {
        let mut line = String::new();
        world.machine().acks.read_line(&mut line)?;
        let (path, word) = line.trim().split_once(' ').ok_or("the writer has ended")?;
        match path.ends_with("/count") {
            true => counts.insert(path.to_owned(), word.parse::<u64>()?).map(drop),
            false => files.insert(path.to_owned(), word.to_owned()).map(drop),
        };
    }
    world.cut_power()?;
    world.boot(&FIRST_ORDER)?;
    world.boot_ends_as("running")?;
    checks::everything_serves(world)?;
    for (path, sum) in files {
        let found = world.attempt(&format!("sha256sum <{path} | cut -c1-64"))?.text();
        ensure(found.trim() == sum, || format!("{path} was synced and is another: {found}"))?;
    }
    for (path, count) in counts {
        let found = world.run(&format!("tail -c 4096 {path}"))?;
        let is_kept = found.trim().parse::<u64>().is_ok_and(|found| found >= count);
        ensure(is_kept, || format!("{path} was {count} and is {}", found.trim()))?;
    }
    checks::kernel_saw_no_errors(world, "0")
}
