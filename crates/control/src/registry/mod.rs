//! The registry: which volumes and arrays there are, in one checksummed JSON file of the state
//! folder.
//!
//! The file is JSON as a whole and exact to the byte. One head line has format, version and the CRC-32C
//! of the body; the body and a closing line follow. A change goes to a temporary file, is synced, and
//! takes the name by a rename; the copy before it stays as `registry.json.previous`. A file that cannot
//! be read is refused and left alone, never repaired by guessing.

mod body;
mod store;

use std::path::Path;

use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::records::{PoolRecord, RegisteredArray, VolumeRecord};

use body::{Body, decode, encode};
use store::RegistryFile;

pub use body::REGISTRY_VERSION;
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
            Some(bytes) => decode(&bytes).map_err(|reason| store.refusal(&reason))?,
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

    /// Adds or replaces a volume, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put(&mut self, record: VolumeRecord) -> ControlResult<()> {
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
    use crate::status::ByteRange;

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
                maybe_dirty: true,
                dirty_lines: 7,
                evacuating: false,
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
            let reason = decode(&encode(&body)).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
    }

    #[test]
    fn arrays_come_back_and_without_them_programs_before_them_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        let version = || fs::read_to_string(dir.path().join(REGISTRY_FILE)).unwrap();
        registry.put(volume("a")).unwrap();
        assert!(version().contains("\"version\":1,"));
        registry.put(over("a", "r6")).unwrap();
        assert!(version().contains("\"version\":2,"));
        registry.put_array(array("r6")).unwrap();
        registry.put_array(array("m1")).unwrap();
        assert!(version().contains("\"version\":2,"));
        let again = Registry::load(dir.path()).unwrap();
        assert_eq!(again.arrays(), [array("m1"), array("r6")]);
        assert_eq!(again.volumes(), [over("a", "r6")]);
        assert_eq!(again.find_array(&"r6".parse().unwrap()), Some(&array("r6")));
        for name in ["r6", "m1"] {
            registry.remove_array(&name.parse().unwrap()).unwrap();
        }
        registry.put(volume("a")).unwrap();
        assert!(version().contains("\"version\":1,"));
        let mut old = String::from_utf8(encode(&body(&[], &["r"]))).unwrap();
        old = old.replacen("\"version\":2", "\"version\":1", 1);
        assert!(decode(old.as_bytes()).unwrap_err().contains("not that of version 1"));
    }

    #[test]
    fn the_version_is_the_oldest_that_can_say_what_is_set() {
        let set = |key: &str, value: &str| {
            let mut record = array("r6");
            record.settings.apply(key, value).unwrap();
            Body { arrays: vec![record], ..Body::default() }
        };
        for (key, value, version) in [
            ("rebuild_priority", "high", 2),
            ("merge", "adaptive", 2),
            ("max_errors", "3", 3),
            ("merge_wait", "1ms", 4),
            ("deadline", "75s", 2),
            ("deadline", "off", 5),
        ] {
            let body = set(key, value);
            assert_eq!(body.version(), version, "{key}={value}");
            assert_eq!(decode(&encode(&body)).unwrap().arrays, body.arrays);
        }
    }

    #[test]
    fn an_evacuation_needs_version_6() {
        let mut body = body(&["v"], &[]);
        body.volumes[0].cache.as_mut().unwrap().evacuating = true;
        let bytes = encode(&body);
        assert!(bytes.starts_with(b"{\"format\":\"voltier-registry\",\"version\":6,"));
        assert_eq!(decode(&bytes).unwrap().volumes, body.volumes);
        body.volumes[0].cache.as_mut().unwrap().settings.apply("congested", "3ms").unwrap();
        assert_eq!(body.version(), 6);
    }

    #[test]
    fn an_export_for_others_needs_version_8() {
        let mut body = body(&["v"], &[]);
        let access = ExportAccess::parse(None, None, Some("kvm")).unwrap().unwrap();
        body.volumes[0].export_access.insert("/run/x.sock".into(), access.clone());
        body.volumes[0].desired = Desired::Stopped;
        let bytes = encode(&body);
        assert!(bytes.starts_with(b"{\"format\":\"voltier-registry\",\"version\":8,"));
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains("\"mode\": \"0660\",\n          \"group\": \"kvm\""), "{text}");
        let volumes = decode(&bytes).unwrap().volumes;
        assert_eq!(volumes, body.volumes);
        assert_eq!(volumes[0].access_of(&volumes[0].exports[0]), Some(&access));
    }

    #[test]
    fn what_is_stopped_needs_version_7() {
        let mut stopped_volume = body(&["v"], &["r"]);
        stopped_volume.volumes[0].desired = Desired::Stopped;
        let mut stopped_array = body(&["v"], &["r"]);
        stopped_array.arrays[0].stopped = true;
        for body in [stopped_volume, stopped_array] {
            let bytes = encode(&body);
            assert!(bytes.starts_with(b"{\"format\":\"voltier-registry\",\"version\":7,"));
            let again = decode(&bytes).unwrap();
            assert_eq!((again.volumes, again.arrays), (body.volumes, body.arrays));
        }
    }

    #[test]
    fn what_counts_as_congestion_needs_version_5_when_it_is_not_as_usual() {
        for (value, version) in [("2ms", 1), ("off", 5), ("3ms", 5)] {
            let mut record = volume("a");
            let cache = record.cache.as_mut().unwrap();
            cache.settings.apply("congested", value).unwrap();
            let body = Body { volumes: vec![record], ..Body::default() };
            assert_eq!(body.version(), version, "{value}");
            assert_eq!(decode(&encode(&body)).unwrap().volumes, body.volumes);
        }
    }

    #[test]
    fn a_deadline_of_a_cache_needs_version_9_when_it_is_not_as_usual() {
        for (value, version) in [("30s", 1), ("off", 9), ("90", 9)] {
            let mut record = volume("a");
            record.cache.as_mut().unwrap().settings.apply("deadline", value).unwrap();
            let body = Body { volumes: vec![record], ..Body::default() };
            assert_eq!(body.version(), version, "{value}");
            let bytes = encode(&body);
            assert_eq!(decode(&bytes).unwrap().volumes, body.volumes);
            let is_said = String::from_utf8(bytes).unwrap().contains("deadline_s");
            assert_eq!(is_said, version == 9, "an older program reads what is as usual");
        }
    }

    #[test]
    fn an_array_with_checksums_needs_version_10() {
        let mut record = array("r");
        let bytes = encode(&Body { arrays: vec![record.clone()], ..Body::default() });
        assert!(!String::from_utf8(bytes).unwrap().contains("integrity"), "as before checksums");
        record.integrity = Integrity::Crc32c;
        let body = Body { arrays: vec![record], ..Body::default() };
        assert_eq!(body.version(), 10);
        let bytes = encode(&body);
        assert_eq!(decode(&bytes).unwrap().arrays, body.arrays);
        assert!(String::from_utf8(bytes).unwrap().contains("\"integrity\": \"crc32c\""));
    }

    #[test]
    fn the_checksum_covers_the_version_from_10_on() {
        let mut record = array("r");
        for (integrity, version) in [(Integrity::None, 2), (Integrity::Crc32c, 10)] {
            record.integrity = integrity;
            let body = Body { arrays: vec![record.clone()], ..Body::default() };
            let text = String::from_utf8(encode(&body)).unwrap();
            let (_, rest) = text.split_once('\n').unwrap();
            let records = rest.strip_suffix("\n}\n").unwrap();
            let of_records = checksum(1, records);
            let has_old_checksum = text.starts_with(&head(version, of_records));
            assert_eq!(has_old_checksum, version < 10, "version {version}");
            for other in (1..=REGISTRY_VERSION).filter(|other| *other != version) {
                let said = format!("\"version\":{version},");
                let other = text.replacen(&said, &format!("\"version\":{other},"), 1);
                assert!(decode(other.as_bytes()).is_err(), "{said}");
            }
        }
        let without = format!("{}{}", head(10, checksum(1, "{}")), "{}\n}\n");
        assert!(decode(without.as_bytes()).unwrap_err().contains("checksum"));
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
    fn a_newer_a_foreign_and_a_damaged_file_are_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGISTRY_FILE);
        let newer = format!("{},", REGISTRY_VERSION + 1);
        let newer = String::from_utf8(encode(&body(&[], &[]))).unwrap().replacen("1,", &newer, 1);
        let too_new = format!("this program knows versions up to {REGISTRY_VERSION}");
        let cases = [
            (&*too_new, newer.as_str()),
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
