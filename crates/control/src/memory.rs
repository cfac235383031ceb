//! The memory of a cache: whether there is enough of it, and what to do if not.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use voltier_block::SECTOR_BYTES;
use voltier_cache::{FormatOptions, LineSize, MemoryGate, memory_of_new};

use crate::engine::CacheStart;
use crate::records::VolumeRecord;
use crate::safety::{Promise, Promises, Room, Shortage};
use crate::units::format_size;

/// The largest line of a cache, in bytes.
const LINE_BYTES_MAX: u64 = 65536;

/// Whoever promises memory, with what was left when a command asked.
#[derive(Clone, Debug)]
pub struct Memory {
    promises: Arc<Promises>,
    room: Room,
}

/// The memory that is promised to a volume.
pub type VolumeMemory = Rc<Cell<Option<Promise>>>;

impl Memory {
    /// Memory is promised from what is left now.
    pub fn new(promises: &Arc<Promises>, room: Room) -> Self {
        Self { promises: promises.clone(), room }
    }

    /// Promises so many bytes.
    ///
    /// # Errors
    /// How much is left, and by what limit.
    pub fn promise(&self, bytes: u64) -> Result<Promise, Shortage> {
        self.promises.promise(bytes, &self.room)
    }

    /// Has the cache of a record, on an SSD of so many bytes, ask before it takes its memory. What it gets is
    /// noted in `given`.
    pub fn gate(
        self,
        given: &VolumeMemory,
        record: &VolumeRecord,
        start: CacheStart,
        ssd_bytes: u64,
        origin_bytes: u64,
    ) -> MemoryGate {
        let (given, record) = (given.clone(), record.clone());
        MemoryGate::new(move |bytes| {
            // A new cache asks when it is made, and once more when it is opened.
            given.set(None);
            let promise = self.promise(bytes).map_err(|shortage| {
                let advice = match start {
                    CacheStart::Format => {
                        let fits = |bytes| self.promise(bytes).is_ok();
                        advice_for_new(&record, ssd_bytes, origin_bytes, fits)
                    }
                    CacheStart::Import | CacheStart::ImportGiven => {
                        "free some memory or raise the limit, and import it again".to_owned()
                    }
                    CacheStart::Load | CacheStart::LoadUnmarked | CacheStart::Adopt => format!(
                        "nothing on the SSD is changed: free some memory or raise the limit, then `voltier \
                         start {}`",
                        record.name
                    ),
                };
                format!("it {shortage}; {advice}")
            })?;
            given.set(Some(promise));
            Ok(())
        })
    }
}

/// What to do when there is no memory for a new cache: the smallest larger line that fits, if there is one.
fn advice_for_new(
    record: &VolumeRecord,
    ssd_bytes: u64,
    origin_bytes: u64,
    fits: impl Fn(u64) -> bool,
) -> String {
    let smaller_ssd = "use a smaller SSD (a partition of it, for one) or free some memory";
    let Some(cache) = &record.cache else { return smaller_ssd.to_owned() };
    let settings = cache.settings.for_cache();
    let Ok(format) = cache.settings.for_format(cache.uuid.0) else { return smaller_ssd.to_owned() };
    let needed = |bytes: u64| {
        let line_size = LineSize::new(bytes).ok()?;
        let larger = FormatOptions { line_size, ..format.clone() };
        memory_of_new(&larger, settings.admission, ssd_bytes, origin_bytes / SECTOR_BYTES).ok()
    };
    let mut line_bytes = format.line_size.bytes() * 2;
    while line_bytes <= LINE_BYTES_MAX {
        if let Some(needed) = needed(line_bytes).filter(|needed| fits(*needed)) {
            let needed = format_size(needed);
            return format!("use larger lines (-b {line_bytes} needs {needed}), or {smaller_ssd}");
        }
        line_bytes *= 2;
    }
    smaller_ssd.to_owned()
}
