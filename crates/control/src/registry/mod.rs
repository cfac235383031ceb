//! The registry: which volumes and arrays there are, in one checksummed JSON file of the state
//! folder.
//!
//! The file is JSON as a whole and exact to the byte. One head line has format, version, features and
//! the CRC-32C of these and the body; the body and a closing line follow. A change goes to a temporary file, is synced,
//! and takes the name by a rename; the copy before it stays as `registry.json.previous`. A file that cannot
//! be read is refused and left alone, never repaired by guessing.

mod body;
mod store;

use std::path::Path;

use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::records::{Identity, PoolRecord, RegisteredArray, VolumeRecord};
use crate::status::ByteRange;

use body::{Body, Refused, decode, encode};
use store::RegistryFile;

pub use body::REGISTRY_FORMAT;
pub use store::{REGISTRY_FILE, RegistryStore};

/// All volumes and arrays of one state folder, in the order of their names.
#[derive(Debug)]
pub struct Registry {
    store: Box<dyn RegistryStore>,
    body: Body,
    /// Why the store takes nothing: the error of the last attempt, if it failed.
    trouble: Option<ControlError>,
}

impl Registry {
    /// Reads the registry of a state folder; a folder without one has no volumes.
    ///
    /// # Errors
    /// When the file is foreign, newer or damaged; the message names it and the previous copy.
    pub fn load(state_dir: &Path) -> ControlResult<Self> {
        Self::load_from(Box::new(RegistryFile::of(state_dir)?))
    }

    /// Reads the registry that is kept in `store`.
    ///
    /// # Errors
    /// When the registry is foreign, newer or damaged.
    pub fn load_from(store: Box<dyn RegistryStore>) -> ControlResult<Self> {
        let body = match store.read()? {
            None => Body::default(),
            Some(bytes) => decode(&bytes).map_err(|refused| match refused {
                Refused::Unsupported(why) => store.refusal_of_newer(&why),
                Refused::Wrong(reason) => store.refusal(&reason),
            })?,
        };
        Ok(Self { store, body, trouble: None })
    }

    /// All volumes.
    pub fn volumes(&self) -> &[VolumeRecord] {
        &self.body.volumes
    }

    /// One volume.
    pub fn find(&self, name: &VolumeName) -> Option<&VolumeRecord> {
        self.body.volumes.iter().find(|volume| volume.name == *name)
    }

    /// Adds or replaces a volume, on the medium when it returns. Ranges that were passed beside its SSD stay on
    /// record until the SSD is given up, or [others take their place](Self::put_passed).
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put(&mut self, mut record: VolumeRecord) -> ControlResult<()> {
        let before = self.find(&record.name).and_then(|before| before.cache.clone());
        if let Some(cache) = &mut record.cache {
            cache.keep_passed(before.as_ref());
        }
        self.replace(record)
    }

    /// Records the ranges of a volume that are passed beside its SSD, instead of those before.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put_passed(&mut self, name: &VolumeName, passed: Vec<ByteRange>) -> ControlResult<()> {
        let Some(mut record) = self.find(name).cloned() else { return Ok(()) };
        if let Some(cache) = &mut record.cache {
            cache.passed = passed;
        }
        self.replace(record)
    }

    fn replace(&mut self, record: VolumeRecord) -> ControlResult<()> {
        self.change(|body| {
            body.volumes.retain(|volume| volume.name != record.name);
            body.volumes.push(record);
            body.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        })
    }

    /// Forgets a volume, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn remove(&mut self, name: &VolumeName) -> ControlResult<()> {
        self.change(|body| body.volumes.retain(|volume| volume.name != *name))
    }

    /// All arrays.
    pub fn arrays(&self) -> &[RegisteredArray] {
        &self.body.arrays
    }

    /// One array.
    pub fn find_array(&self, name: &ArrayName) -> Option<&RegisteredArray> {
        self.body.arrays.iter().find(|array| array.name == *name)
    }

    /// The array with an identity.
    pub(crate) fn array_with(&self, uuid: Identity) -> Option<&RegisteredArray> {
        self.body.arrays.iter().find(|array| array.uuid == uuid)
    }

    /// Adds or replaces an array, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put_array(&mut self, record: RegisteredArray) -> ControlResult<()> {
        self.change(|body| body.put_array(record))
    }

    /// Forgets an array, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn remove_array(&mut self, name: &ArrayName) -> ControlResult<()> {
        self.change(|body| body.arrays.retain(|array| array.name != *name))
    }

    /// All pools of spares.
    pub fn pools(&self) -> &[PoolRecord] {
        &self.body.spare_pools
    }

    /// One pool of spares.
    pub fn find_pool(&self, name: &PoolName) -> Option<&PoolRecord> {
        self.body.spare_pools.iter().find(|pool| pool.name == *name)
    }

    /// Adds or replaces a pool of spares, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put_pool(&mut self, record: PoolRecord) -> ControlResult<()> {
        self.change(|body| body.put_pool(record))
    }

    /// Forgets a pool of spares, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn remove_pool(&mut self, name: &PoolName) -> ControlResult<()> {
        self.change(|body| body.spare_pools.retain(|pool| pool.name != *name))
    }

    /// Replaces a pool and an array at once, on the medium when the call returns. A spare that goes
    /// from one to the other is at any moment in one of them.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put_pool_and_array(
        &mut self,
        pool: PoolRecord,
        array: RegisteredArray,
    ) -> ControlResult<()> {
        self.change(|body| {
            body.put_pool(pool);
            body.put_array(array);
        })
    }

    /// Why the registry takes no changes; `None` while all is well.
    pub fn trouble(&self) -> Option<&ControlError> {
        self.trouble.as_ref()
    }

    /// Looks whether the registry takes changes, before anything is done that needs one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn check_room(&mut self) -> ControlResult<()> {
        let checked = self.store.check_room();
        self.learn(checked)
    }

    fn change(&mut self, change: impl FnOnce(&mut Body)) -> ControlResult<()> {
        let mut body = self.body.clone();
        change(&mut body);
        let written = self.store.write(&encode(&body));
        self.learn(written)?;
        self.body = body;
        Ok(())
    }

    /// Keeps the outcome of an attempt to write.
    fn learn(&mut self, outcome: ControlResult<()>) -> ControlResult<()> {
        self.trouble = outcome.as_ref().err().cloned();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::collections::BTreeMap;

    use super::body::*;
    use super::store::previous_path;
    use super::*;
    use voltier_array::{Consistency, Integrity};

    use crate::array_settings::*;
    use crate::export_access::ExportAccess;
    use crate::export_spec::ExportSpec;
    use crate::records::{CacheRecord, Desired, Identity};
    use crate::safety::DriveIdentity;
    use crate::settings::Settings;

    fn volume(name: &str) -> VolumeRecord {
        VolumeRecord {
            name: name.parse().unwrap(),
            uuid: Identity([7; 16]),
            size_bytes: 1 << 30,
            origin: "/dev/sdb".parse().unwrap(),
            origin_identity: Some(DriveIdentity::simulated(2)),
            cache: Some(CacheRecord {
                device: "mem:1G".parse().unwrap(),
                identity: None,
                uuid: Identity([9; 16]),
                settings: Settings::default(),
                generation: 3,
                sequence: 2,
                maybe_dirty: true,
                dirty_lines: 7,
                evacuating: false,
                passed: Vec::new(),
                failed: None,
                lost: vec![ByteRange { offset_bytes: 4096, length_bytes: 512 }],
                lost_total: 1,
            }),
            exports: vec![ExportSpec::Nbd("unix:/run/x.sock".parse().unwrap())],
            export_access: BTreeMap::new(),
            desired: Desired::Serving,
        }
    }

    fn array(name: &str) -> RegisteredArray {
        RegisteredArray {
            name: name.parse().unwrap(),
            uuid: Identity([5; 16]),
            level: "5".parse().unwrap(),
            chunk_bytes: 16384,
            consistency: Consistency::Journal,
            integrity: Integrity::None,
            size_bytes: 1 << 30,
            events: 4,
            members: vec![Some("/dev/sdb".parse().unwrap()), None, Some("mem:1G".parse().unwrap())],
            spares: vec!["/dev/sdd".parse().unwrap()],
            incoming: Vec::new(),
            journal: None,
            stopped: false,
            read_only: false,
            failed_drives: Vec::new(),
            settings: ArraySettings::default(),
        }
    }

    fn body(volumes: &[&str], arrays: &[&str]) -> Body {
        Body {
            volumes: volumes.iter().copied().map(volume).collect(),
            arrays: arrays.iter().copied().map(array).collect(),
            spare_pools: Vec::new(),
        }
    }

    fn over(name: &str, on: &str) -> VolumeRecord {
        VolumeRecord { origin: format!("array:{on}").parse().unwrap(), ..volume(name) }
    }

    #[test]
    fn what_was_put_is_loaded_again_and_the_copy_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        registry.put(volume("b")).unwrap();
        registry.put(volume("a")).unwrap();
        let again = Registry::load(dir.path()).unwrap();
        assert_eq!(again.volumes(), [volume("a"), volume("b")]);
        let previous = fs::read(previous_path(&dir.path().join(REGISTRY_FILE))).unwrap();
        assert_eq!(decode(&previous).unwrap().volumes, [volume("b")]);
        registry.remove(&"a".parse().unwrap()).unwrap();
        assert_eq!(Registry::load(dir.path()).unwrap().volumes(), [volume("b")]);
    }

    #[test]
    fn records_stay_in_the_folder_that_was_opened_when_another_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let [state, aside] = ["state", "aside"].map(|name| dir.path().join(name));
        fs::create_dir(&state).unwrap();
        let mut registry = Registry::load(&state).unwrap();
        registry.put(volume("a")).unwrap();
        fs::rename(&state, &aside).unwrap();
        fs::create_dir(&state).unwrap();
        registry.put(volume("b")).unwrap();
        assert_eq!(Registry::load(&aside).unwrap().volumes(), [volume("a"), volume("b")]);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_under_a_good_checksum_too() {
        let mut bad_shape = body(&[], &["r"]);
        bad_shape.arrays[0].members.pop();
        let mut nested = body(&[], &["r"]);
        nested.arrays[0].members[2] = Some("array:q".parse().unwrap());
        let mut shared = body(&[], &["r"]);
        shared.volumes = vec![over("a", "r"), over("b", "r")];
        let cases = [
            (body(&["a", "b", "a"], &[]), "two volumes are named a"),
            (body(&[], &["r", "q", "r"]), "two arrays are named r"),
            (bad_shape, "the array r cannot be"),
            (nested, "has an array as a member"),
            (shared, "the array r is used twice"),
        ];
        for (body, words) in cases {
            let reason = decode(&encode(&body)).unwrap_err().to_string();
            assert!(reason.contains(words), "{reason}");
        }
    }

    #[test]
    fn passed_ranges_stay_until_the_ssd_is_given_up_whoever_does_not_know_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        registry.put(volume("a")).unwrap();
        let (name, passed) = ("a".parse().unwrap(), |registry: &Registry| {
            registry.volumes()[0].cache.as_ref().unwrap().passed.clone()
        });
        let ranges = vec![ByteRange { offset_bytes: 0, length_bytes: 4096 }];
        registry.put_passed(&name, ranges.clone()).unwrap();
        registry.put(VolumeRecord { desired: Desired::Stopped, ..volume("a") }).unwrap();
        assert_eq!(passed(&Registry::load(dir.path()).unwrap()), ranges);
        let mut opened = volume("a");
        opened.cache.as_mut().unwrap().generation += 1;
        registry.put(opened).unwrap();
        assert_eq!(passed(&registry), ranges, "its SSD may not know yet");
        let mut failed = registry.volumes()[0].clone();
        failed.cache.as_mut().unwrap().failed = Some("it is gone".to_owned());
        registry.put(failed).unwrap();
        assert_eq!(passed(&registry), []);
        registry.put(volume("a")).unwrap();
        registry.put_passed(&name, ranges).unwrap();
        let mut other = volume("a");
        other.cache.as_mut().unwrap().uuid = Identity([1; 16]);
        registry.put(other).unwrap();
        assert_eq!(passed(&registry), [], "another cache");
    }

    #[test]
    fn what_no_start_would_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        registry.put(volume("a")).unwrap();
        let mut store = RegistryFile::of(dir.path()).unwrap();
        let refused = store.write(&vec![b' '; 65 << 20]).unwrap_err();
        assert!(refused.message.contains("longer than 64 MiB"), "{}", refused.message);
        assert_eq!(Registry::load(dir.path()).unwrap().volumes(), [volume("a")]);
    }

    #[test]
    fn arrays_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        registry.put(over("a", "r6")).unwrap();
        registry.put_array(array("r6")).unwrap();
        registry.put_array(array("m1")).unwrap();
        let again = Registry::load(dir.path()).unwrap();
        assert_eq!(again.arrays(), [array("m1"), array("r6")]);
        assert_eq!(again.volumes(), [over("a", "r6")]);
        assert_eq!(again.find_array(&"r6".parse().unwrap()), Some(&array("r6")));
        for name in ["r6", "m1"] {
            registry.remove_array(&name.parse().unwrap()).unwrap();
        }
        assert_eq!(Registry::load(dir.path()).unwrap().arrays(), []);
    }

    #[test]
    fn every_setting_comes_back_as_usual_or_not() {
        let mut body = body(&["v"], &["r"]);
        for (key, value) in [("congested", "3ms"), ("deadline", "off"), ("mode", "ro")] {
            assert_eq!(decode(&encode(&body)).unwrap().volumes, body.volumes);
            let cache = body.volumes[0].cache.as_mut().unwrap();
            cache.settings.apply(key, value).unwrap();
        }
        for (key, value) in [("max_errors", "3"), ("merge_wait", "1ms"), ("deadline", "off")] {
            assert_eq!(decode(&encode(&body)).unwrap().arrays, body.arrays);
            body.arrays[0].settings.apply(key, value).unwrap();
        }
        body.volumes[0].cache.as_mut().unwrap().evacuating = true;
        let passed = vec![ByteRange { offset_bytes: 8192, length_bytes: 4096 }];
        body.volumes[0].cache.as_mut().unwrap().passed = passed;
        body.volumes[0].desired = Desired::Stopped;
        body.arrays[0].stopped = true;
        body.arrays[0].integrity = Integrity::Crc32c;
        let again = decode(&encode(&body)).unwrap();
        assert_eq!((again.volumes, again.arrays), (body.volumes, body.arrays));
    }

    #[test]
    fn an_export_for_others_comes_back_with_its_access() {
        let mut body = body(&["v"], &[]);
        let access = ExportAccess::parse(None, None, Some("kvm")).unwrap().unwrap();
        body.volumes[0].export_access.insert("/run/x.sock".into(), access.clone());
        let bytes = encode(&body);
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains("\"mode\": \"0660\",\n          \"group\": \"kvm\""), "{text}");
        let volumes = decode(&bytes).unwrap().volumes;
        assert_eq!(volumes, body.volumes);
        assert_eq!(volumes[0].access_of(&volumes[0].exports[0]), Some(&access));
    }

    #[test]
    fn an_unknown_version_or_feature_is_refused_by_name_and_the_file_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGISTRY_FILE);
        let cases = [
            (Head::new(2, &[]), "format version 2, and this Voltier reads version 1"),
            (Head::new(0, &[]), "format version 0, and this Voltier reads version 1"),
            (Head::new(1, &["quota"]), "feature quota is unknown here"),
            (Head::new(1, &["quota", "tiers"]), "features quota, tiers are unknown here"),
        ];
        for (head, words) in cases {
            // Nothing behind the head counts, however wrong it is.
            let bytes = head.seal("no records");
            assert!(matches!(decode(&bytes), Err(Refused::Unsupported(_))));
            fs::write(&path, &bytes).unwrap();
            let error = Registry::load(dir.path()).unwrap_err().message;
            let named = format!("refusing the registry {}: {words}; written by", path.display());
            assert!(error.starts_with(&named) && error.ends_with("update this one"), "{error}");
            assert!(!error.contains('\n'), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_word_or_a_setting_that_came_later_is_refused_by_name() {
        let good = serde_json::to_string_pretty(&body(&["v"], &[])).unwrap();
        let cases = [
            ("\"lru\"", "\"arc\"", "`arc` is not a replacement policy"),
            ("\"ordered\"", "\"order\"", "unknown field `order`"),
        ];
        for (known, later, words) in cases {
            let bytes = Head::new(1, &[]).seal(&good.replacen(known, later, 1));
            let refused = decode(&bytes).unwrap_err();
            assert!(matches!(refused, Refused::Unsupported(_)), "{refused}");
            let refused = refused.to_string();
            assert!(refused.contains(words) && refused.ends_with("update this one"), "{refused}");
        }
    }

    #[test]
    fn the_checksum_covers_version_and_features() {
        let text = String::from_utf8(encode(&body(&[], &["r"]))).unwrap();
        let head = "{\"format\":\"voltier-registry\",\"version\":1,\"features\":[],\"crc32c\":\"";
        assert!(text.starts_with(head), "{text}");
        for (said, other) in [
            ("\"version\":1", "\"version\":2"),
            ("\"features\":[]", "\"features\":[\"quota\"]"),
            (",\"features\":[]", ""),
        ] {
            let other = text.replacen(said, other, 1);
            let refused = decode(other.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains("damaged (checksum)"), "{refused}");
        }
    }

    #[test]
    fn the_file_is_json_as_a_whole() {
        let bytes = encode(&body(&["a"], &["r"]));
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["registry"]["volumes"][0]["name"], "a");
        assert_eq!(value["registry"]["arrays"][0]["level"], "5");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = encode(&body(&["a"], &["r"]));
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad).is_err(), "byte {at}, bit {bit}");
            }
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(decode(&good).unwrap().arrays, [array("r")]);
    }

    #[test]
    fn a_foreign_and_a_damaged_file_are_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGISTRY_FILE);
        let damaged = String::from_utf8(encode(&body(&["a"], &[]))).unwrap().replacen('7', "8", 1);
        let cases = [
            ("damaged", &*damaged),
            ("not a Voltier registry", "{}"),
            ("not a Voltier registry", ""),
        ];
        for (reason, content) in cases {
            fs::write(&path, content).unwrap();
            let error = Registry::load(dir.path()).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
            assert!(error.message.contains(&path.display().to_string()), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::write(previous_path(&path), "x").unwrap();
        let error = Registry::load(dir.path()).unwrap_err();
        assert!(error.message.contains("registry.json.previous"), "{error}");
        assert!(error.message.contains("older data would go over newer"), "{error}");
        assert!(error.message.contains("`voltier import DEVICE...`"), "{error}");
    }

    #[test]
    fn a_registry_that_cannot_be_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(&dir.path().join("absent")).unwrap();
        assert!(registry.put(volume("a")).is_err());
        assert!(registry.volumes().is_empty());
    }
}
