//! Opening recorded volumes: at the start of the daemon, and when what they lacked has come.

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::name::VolumeName;
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::service::presence::{admit, drives, ephemeral, look, moved};
use crate::service::state::jobs::Purpose;
use crate::service::state::live::Live;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::{close_and_note, open_volume};
use crate::service::volumes::{drains, exports, removal};
use crate::settings::{ORIGIN_KEY, SSD_KEY};

/// Brings one volume up with what is there, its exports and its unfinished work included.
pub(crate) fn open_up(turn: &mut Turn, record: &VolumeRecord) {
    let name = record.name.clone();
    let mut live = Live::new();
    let opened = match locate_drives(turn, record) {
        Ok(located) => open_recorded(turn, &located, &mut live),
        Err(error) => Err(error),
    };
    live.is_open = opened.is_ok();
    if live.is_open {
        turn.adopted_origins.remove(&name);
    }
    live.is_unrecorded = opened.is_err() && turn.registry.trouble().is_some();
    turn.is_troubled |= live.is_unrecorded;
    let before = turn.live.insert(name.clone(), live);
    if let Err(error) = &opened {
        let is_news = before.is_none_or(|before| before.error != error.message);
        turn.note_unless(!is_news, &name, opened);
        return;
    }
    let adopted = adopt_identities(turn, &name);
    turn.note(&name, adopted);
    exports::open_exports(turn, record);
    let is_leaving = matches!(record.desired, Desired::Detaching | Desired::Deleting);
    if is_leaving && record.cache.is_none() {
        if let Err(error) = drains::at_once(turn, &name, Purpose::Delete, |turn| {
            removal::drop_volume(turn, &name, false)
        }) {
            turn.note(&name, Err(error));
        }
        return;
    }
    let purpose = match record.desired {
        Desired::Serving | Desired::Stopped => return,
        Desired::Detaching => Purpose::Detach,
        Desired::Deleting => Purpose::Delete,
    };
    turn.log(&name, &format!("going on with its {}", purpose.verb()));
    let resumed = drains::drain_for(turn, &name, purpose).map(drop);
    turn.note(&name, resumed);
}

/// Finds the drives of a volume by their identities; the record says where they are now.
fn locate_drives(turn: &mut Turn, record: &VolumeRecord) -> ControlResult<VolumeRecord> {
    let step = format!("looking for the drives of {}", record.name);
    let (located, news) = drives::located(&*turn.apart(step), record)?;
    if located != *record {
        turn.registry.put(located.clone())?;
    }
    for line in news {
        turn.log(&record.name, &line);
    }
    Ok(located)
}

/// Records what the drives of an open volume are known by, where the record does not say it.
fn adopt_identities(turn: &mut Turn, name: &VolumeName) -> ControlResult<()> {
    let Some(before) = turn.registry.find(name).cloned() else { return Ok(()) };
    let ssd = before.cache.as_ref().filter(|it| it.failed.is_none() && it.identity.is_none());
    let mark_of_ssd = ssd.and_then(|cache| admit::mark_of(turn, &cache.device));
    let mark_of_origin = match before.origin_identity {
        None => admit::mark_of(turn, &before.origin),
        Some(_) => None,
    };
    // The SSD may have failed while the drives were asked.
    let Some(record) = turn.registry.find(name).cloned() else { return Ok(()) };
    let mut adopted = record.clone();
    adopted.origin_identity = adopted.origin_identity.or(mark_of_origin);
    if let Some(cache) = adopted.cache.as_mut().filter(|cache| cache.failed.is_none()) {
        cache.identity = cache.identity.take().or(mark_of_ssd);
    }
    if adopted == record { Ok(()) } else { turn.registry.put(adopted) }
}

fn open_recorded(turn: &mut Turn, record: &VolumeRecord, live: &mut Live) -> ControlResult<()> {
    if matches!(&record.origin, device if device.is_volatile()) {
        return Err(ControlError::failed(format!(
            "its backing disk {} was lost when the previous daemon ended; `voltier delete \
             --no-flush {}` and create it again",
            record.origin, record.name
        )));
    }
    let (origin, identity) = (&record.origin, record.origin_identity.as_ref());
    look::is_as_recorded(turn, &record.name, ("backing disk", ORIGIN_KEY), origin, identity)?;
    look::look_at(turn, &record.origin, record.size_bytes, "backing disk")?;
    // What clients write could never reach it, and be called written by an SSD in front.
    if record.cache.is_some() || record.origin.array().is_none() {
        look::takes_writes(turn, &record.origin, "backing disk")?;
    }
    moved::is_no_member(turn, record)?;
    let Some(cache) = &record.cache else { return open_plain(turn, record.clone()) };
    if let Some(reason) = &cache.failed {
        if cache.maybe_dirty {
            return Err(ControlError::failed(format!(
                "{reason} with dirty lines, whose newest data are lost; `voltier detach \
                 --no-flush {}` serves what the backing disk has",
                record.name
            )));
        }
        if ephemeral::is_ephemeral(cache) {
            return open_ephemeral(turn, record, cache, "", live);
        }
        live.error = reason.clone();
        return open_plain(turn, record.clone());
    }
    if cache.generation == 0 && ephemeral::is_ephemeral(cache) {
        return open_ephemeral(turn, record, cache, "its attach was interrupted", live);
    }
    if cache.generation == 0 && !cache.maybe_dirty {
        return undo_attach(turn, record);
    }
    // Asked before: an SSD that ends its last request during the start is free only for the next one.
    let is_let_go = look::is_letting_go(turn, &cache.device);
    match open_with_cache(turn, record, cache) {
        Ok(()) => Ok(()),
        Err(_) if is_let_go => Err(ControlError::failed(format!(
            "its SSD {} has not ended its requests from before the stop; `voltier start {}` when \
             it answers",
            cache.device, record.name
        ))),
        // A newer program may have written more to the SSD than this one has on record. Memory may be free,
        // and a disk as large as it was, at the next start.
        Err(error)
            if cache.maybe_dirty
                || matches!(error.kind, ErrorKind::Unsupported | ErrorKind::NotNow) =>
        {
            Err(error)
        }
        Err(error) if ephemeral::is_ephemeral(cache) => {
            open_ephemeral(turn, record, cache, &error.message, live)
        }
        Err(error) => {
            let reason = format!(
                "its clean cache was given up: {error}; `voltier detach {}`, then attach an SSD (with \
                 --ephemeral-ssd, if the SSD is to get a new cache at such a start)",
                record.name
            );
            open_without(turn, record, cache, reason, live)
        }
    }
}

/// Opens a volume whose ephemeral SSD has not the cache that it had: with a new one, or without.
fn open_ephemeral(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: &CacheRecord,
    why: &str,
    live: &mut Live,
) -> ControlResult<()> {
    let opened = ephemeral::new_cache(turn, record, cache).and_then(|new| {
        let anew = VolumeRecord { cache: Some(new), ..record.clone() };
        open_and_record(turn, anew, CacheStart::Format)
    });
    match opened {
        Ok(()) => {
            live.note = ephemeral::said(turn, &record.name, cache, why);
            Ok(())
        }
        Err(error) => {
            live.awaits_ssd = true;
            open_without(turn, record, cache, ephemeral::without(&error), live)
        }
    }
}

/// An attach that a crash cut off before the first opening of its cache was on record. Until then
/// the cache wrote through, so the origin has everything and the volume is as it was before.
fn undo_attach(turn: &mut Turn, record: &VolumeRecord) -> ControlResult<()> {
    turn.log(&record.name, "its attach was interrupted and has been undone; attach the SSD again");
    let plain = VolumeRecord { cache: None, ..record.clone() };
    turn.registry.put(plain.clone())?;
    open_plain(turn, plain)
}

/// Opens a volume that serves from the origin alone. A size that it did not have before goes on record before
/// any client has it: the next start knows what there must be.
fn open_plain(turn: &mut Turn, mut record: VolumeRecord) -> ControlResult<()> {
    let opened = open_volume(turn, &record, CacheStart::Load)?;
    if opened.size_bytes == record.size_bytes {
        return Ok(());
    }
    record.size_bytes = opened.size_bytes;
    let name = record.name.clone();
    turn.registry.put(record).inspect_err(|_| close_and_note(turn, &name))
}

fn open_with_cache(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: &CacheRecord,
) -> ControlResult<()> {
    if !cache.device.is_volatile() {
        let identity = cache.identity.as_ref();
        look::look_at(turn, &cache.device, 0, "cache")
            .and_then(|()| {
                let side = ("SSD", SSD_KEY);
                look::is_as_recorded(turn, &record.name, side, &cache.device, identity)
            })
            .map_err(|error| may_be_missed(record, error))?;
        if cache.device.array().is_some() {
            look::takes_writes(turn, &cache.device, "SSD")?;
        }
        let is_adopted = turn.adopted_origins.contains(&record.name);
        let start = match is_adopted {
            true => CacheStart::Adopt,
            false if is_unmarked(turn, record) => CacheStart::LoadUnmarked,
            false => CacheStart::Load,
        };
        return open_and_record(turn, record.clone(), start);
    }
    if cache.maybe_dirty {
        return Err(ControlError::failed(format!(
            "its cache {} was lost when the previous daemon ended, and may have held the newest \
             data; `voltier detach --no-flush {}` gives them up",
            cache.device, record.name
        )));
    }
    let mut fresh = record.clone();
    fresh.cache =
        Some(CacheRecord { uuid: turn.engine.draw_identity()?, generation: 0, ..cache.clone() });
    open_and_record(turn, fresh, CacheStart::Format)
}

/// Whether only a name that the kernel gave says which drive the origin is.
fn is_unmarked(turn: &mut Turn, record: &VolumeRecord) -> bool {
    let Some(path) = record.origin.path() else { return false };
    let mark = record.origin_identity.as_ref().filter(|mark| mark.is_known());
    // A mark that several drives have by now says nothing about any of them.
    if mark.is_some_and(|mark| turn.looking_for(mark).find_drive(mark, path).is_some()) {
        return false;
    }
    let step = format!("asking {} for its kind", path.display());
    turn.apart(step).is_block_device(path)
}

/// Opens a volume and records the new generation of its cache, before any client is served.
pub(crate) fn open_and_record(
    turn: &mut Turn,
    mut record: VolumeRecord,
    start: CacheStart,
) -> ControlResult<()> {
    // The caller's record may be from before ranges were passed.
    let known = turn.registry.find(&record.name).and_then(|known| known.cache.clone());
    if let Some(cache) = &mut record.cache {
        cache.keep_passed(known.as_ref());
    }
    let opened = open_volume(turn, &record, start)?;
    record.size_bytes = opened.size_bytes;
    if let Some(cache) = &mut record.cache {
        cache.generation = opened.generation;
        let writes_back = cache.settings.mode.writes_back() && !opened.evacuates;
        // A power cut may take the news that lines were clean.
        cache.maybe_dirty |= writes_back || opened.dirty_lines > 0;
        cache.evacuating = opened.evacuates;
    }
    let name = &record.name;
    turn.registry.put(record.clone()).inspect_err(|_| close_and_note(turn, name))?;
    let is_passed = record.cache.as_ref().is_some_and(|cache| !cache.passed.is_empty());
    if is_passed && !opened.evacuates {
        // The SSD has it by now. Nobody has been served since, so that the next start can do it again.
        let forgotten = turn.registry.put_passed(name, Vec::new());
        forgotten.inspect_err(|_| close_and_note(turn, name))?;
    }
    if opened.evacuates {
        turn.log(
            &record.name,
            "its SSD takes no writes: its dirty lines are being written to \
                                the backing disk",
        );
        return turn.engine.begin_evacuation(&record.name);
    }
    Ok(())
}

/// Serves from the origin alone. From then on the SSD is stale, and that is recorded before the
/// first client is served.
fn open_without(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: &CacheRecord,
    reason: String,
    live: &mut Live,
) -> ControlResult<()> {
    turn.log(&record.name, &reason);
    let mut without = record.clone();
    without.cache = Some(CacheRecord { failed: Some(reason.clone()), ..cache.clone() });
    let opened = open_volume(turn, &without, CacheStart::Load)?;
    without.size_bytes = opened.size_bytes;
    turn.registry.put(without).inspect_err(|_| close_and_note(turn, &record.name))?;
    live.error = reason;
    Ok(())
}

/// A missing SSD that may have had dirty lines: what is at stake, and the two ways on.
fn may_be_missed(record: &VolumeRecord, error: ControlError) -> ControlError {
    match &record.cache {
        Some(cache) if cache.maybe_dirty => ControlError::failed(format!(
            "{}; this SSD may hold {}: bring it back, and the volume is served (a copy of it, under any \
             path: `voltier set {2} ssd=DEV`), or `voltier detach {2} --no-flush` to give them up",
            error.message.split("; ").next().unwrap_or_default(),
            cache.newest_data(),
            record.name
        )),
        _ => error,
    }
}
