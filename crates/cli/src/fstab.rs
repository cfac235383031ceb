//! `/etc/fstab`: the line of a disk becomes that of its volume, and comes back.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use voltier_control::{ControlError, ControlResult, VolumeName};

/// What stands before a line that a setup put aside, so that the undo finds it.
const MARK: &str = "# voltier setup";

/// Options that bring a volume up and down in order ([the guide](../../../docs/guide/install.md)).
const OPTIONS: [&str; 4] = [
    "_netdev",
    "nofail",
    "x-systemd.requires=voltier.service",
    // A start may wait longer for drives than systemd does for the device, which it would not mount later.
    "x-systemd.device-timeout=200s",
];

/// The file, line by line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fstab {
    path: PathBuf,
    lines: Vec<String>,
}

/// The fields of a line that are needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) source: String,
    pub(crate) folder: PathBuf,
    pub(crate) kind: String,
    options: String,
}

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let line = line.trim_start();
        let mut fields = line.split_whitespace();
        let source = fields.next().filter(|source| !source.starts_with('#'))?;
        let (folder, kind) = (fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or("defaults");
        Some(Self {
            source: source.to_owned(),
            folder: PathBuf::from(unescaped(folder)),
            kind: kind.to_owned(),
            options: options.to_owned(),
        })
    }
}

/// Blanks in paths are written in octal.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011")
}

impl Fstab {
    /// Reads the file; one that is not there has no lines.
    pub(crate) fn read(path: &Path) -> ControlResult<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| failed("reading", path, &error))?,
        };
        Ok(Self { path: path.to_owned(), lines: text.lines().map(str::to_owned).collect() })
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The line of a disk with these names (`blkid`'s UUID, LABEL, ...), and its number.
    pub(crate) fn entry_of(
        &self,
        is_disk: impl Fn(&Path) -> bool,
        names: &BTreeMap<String, String>,
    ) -> Option<(usize, Entry)> {
        let is_it = |entry: &Entry| match entry.source.split_once('=') {
            Some((key, value)) => {
                names.get(key).is_some_and(|known| known == value.trim_matches('"'))
            }
            None => is_disk(Path::new(&entry.source)),
        };
        let mut entries = self.lines.iter().enumerate();
        entries.find_map(|(at, line)| Entry::read(line).filter(&is_it).map(|entry| (at, entry)))
    }

    /// The line that mounts at a folder.
    pub(crate) fn entry_at(&self, folder: &Path) -> Option<Entry> {
        self.lines.iter().filter_map(|line| Entry::read(line)).find(|entry| entry.folder == folder)
    }

    /// Puts the line of a volume in the place of its disk's line, or at the end.
    pub(crate) fn replace(
        &mut self,
        at: Option<usize>,
        name: &VolumeName,
        device: &Path,
        folder: &Path,
        kind: &str,
    ) {
        let before = at.and_then(|at| Entry::read(&self.lines[at]));
        let options = before.map_or_else(|| "defaults".to_owned(), |entry| entry.options);
        let known: Vec<&str> = options.split(',').collect();
        let more = OPTIONS.iter().filter(|option| !known.contains(option));
        let options = known.iter().chain(more).copied().collect::<Vec<_>>().join(",");
        let [device, folder] = [device, folder].map(|path| escaped(&path.display().to_string()));
        let line = format!("{device} {folder} {kind} {options} 0 0");
        match at {
            Some(at) => {
                self.lines[at] = format!("{MARK} {name}: {}", self.lines[at]);
                self.lines.insert(at + 1, line);
            }
            None => self.lines.extend([format!("{MARK} {name}:"), line]),
        }
    }

    /// Takes the line of a volume out again; the folder where it is mounted. `None` when no setup put it there.
    pub(crate) fn restore(&mut self, name: &VolumeName) -> Option<PathBuf> {
        let mark = format!("{MARK} {name}:");
        let at = self.lines.iter().position(|line| line.starts_with(&mark))?;
        let entry = Entry::read(self.lines.get(at + 1)?)?;
        let old = self.lines[at][mark.len()..].trim_start().to_owned();
        self.lines.drain(at..=at + 1);
        if !old.is_empty() {
            self.lines.insert(at, old);
        }
        Some(entry.folder)
    }

    /// Writes the file in one step: it is the old one or the new one.
    pub(crate) fn write(&self) -> ControlResult<()> {
        let mut text = self.lines.join("\n");
        text.push('\n');
        let new = self.path.with_extension("voltier-new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            let mode =
                fs::metadata(&self.path).map_or(0o644, |it| it.permissions().mode() & 0o7777);
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        write().map_err(|error| failed("writing", &self.path, &error))
    }
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::io(format!("{doing} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\nUUID=1 / ext4 errors=remount-ro 0 1\n\
                        UUID=\"2\" /srv/my\\040data xfs noatime,nofail 0 2\n/dev/sdc none swap sw 0 0\n";

    fn fstab() -> (tempfile::TempDir, Fstab) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fstab");
        fs::write(&path, TEXT).unwrap();
        let fstab = Fstab::read(&path).unwrap();
        (dir, fstab)
    }

    fn names(uuid: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("UUID".to_owned(), uuid.to_owned())])
    }

    #[test]
    fn the_line_of_a_disk_is_replaced_and_comes_back_as_it_was() {
        let (dir, mut fstab) = fstab();
        let (at, entry) = fstab.entry_of(|_| false, &names("2")).unwrap();
        assert_eq!((entry.folder.to_str().unwrap(), entry.kind.as_str()), ("/srv/my data", "xfs"));
        let name: VolumeName = "data".parse().unwrap();
        let device = Path::new("/dev/voltier/data");
        fstab.replace(Some(at), &name, device, &entry.folder, "xfs");
        fstab.write().unwrap();
        let text = fs::read_to_string(dir.path().join("fstab")).unwrap();
        let line = "/dev/voltier/data /srv/my\\040data xfs \
                    noatime,nofail,_netdev,x-systemd.requires=voltier.service,\
                    x-systemd.device-timeout=200s 0 0\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("# voltier setup data: UUID=\"2\" /srv/my\\040data"), "{text}");
        let mut again = Fstab::read(&dir.path().join("fstab")).unwrap();
        assert_eq!(again.entry_of(|_| false, &names("2")), None);
        assert_eq!(again.restore(&"other".parse().unwrap()), None);
        assert_eq!(again.restore(&name).unwrap(), Path::new("/srv/my data"));
        again.write().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("fstab")).unwrap(), TEXT);
    }

    #[test]
    fn a_disk_without_a_line_gets_one_that_goes_again() {
        let (dir, mut fstab) = fstab();
        assert_eq!(fstab.entry_of(|path| path == Path::new("/dev/sdc"), &names("9")).unwrap().0, 3);
        let name: VolumeName = "d".parse().unwrap();
        fstab.replace(None, &name, Path::new("/dev/voltier/d"), Path::new("/mnt"), "ext4");
        assert_eq!(fstab.entry_at(Path::new("/mnt")).unwrap().source, "/dev/voltier/d");
        assert_eq!(fstab.restore(&name).unwrap(), Path::new("/mnt"));
        fstab.write().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("fstab")).unwrap(), TEXT);
    }
}
