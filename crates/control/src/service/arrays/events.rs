//! Changes that arrays make by themselves, put on record: members are lost, spares take places.

use crate::date::Date;
use crate::engine::{ArrayDevices, ArrayNews, is_stale_line};
use crate::events::event::{Event, SPARE_USED, Severity};
use crate::name::ArrayName;
use crate::records::{FailedDrive, RegisteredArray};
use crate::service::arrays::wanting::Wanting;
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;
use crate::units::format_size;

/// Spares of an open array that the array does not have, and that come back by themselves.
fn awaited_spares(turn: &Turn, name: &ArrayName) -> Vec<DeviceSpec> {
    let missing = turn.live_arrays.get(name).map(|live| &live.absence.missing);
    let spares = missing.into_iter().flatten().filter(|it| it.is_spare());
    spares.map(|it| it.device.clone()).collect()
}

/// Records what changed in arrays by itself, and who wants spares, the most exposed first. Whether all arrays
/// have said what there is to record.
pub(crate) fn record(turn: &mut Turn) -> bool {
    let (mut have_all_said, mut wanting) = (true, Vec::new());
    for record in turn.registry.arrays().to_vec() {
        let name = record.name.clone();
        let is_moving = turn.live_arrays.get(&name).is_none_or(|live| live.is_moving);
        if is_moving || turn.size_of_array(&name).is_err() {
            // The command that opens the array puts it on record.
            continue;
        }
        let Some(now) = turn.engine.array_devices(&name) else {
            have_all_said = false;
            continue;
        };
        let ArrayDevices {
            level,
            size_bytes,
            events,
            members,
            spares,
            incoming,
            spares_wanted,
            may_lose,
            lost_too_many,
            news,
            lost,
        } = now;
        if lost_too_many > 0 {
            turn.fallen.insert(name.clone());
        }
        let arriving = turn.live_arrays.get(&name).map(|live| live.arriving.clone());
        let arriving = arriving.unwrap_or_default();
        let mut awaited = awaited_spares(turn, &name);
        awaited.extend(arriving.iter().cloned());
        let before = turn.live_arrays.get(&name).and_then(|live| live.size_bytes);
        let has_grown = before.is_some_and(|before| before > 0 && size_bytes > before);
        if let Some(live) = turn.live_arrays.get_mut(&name) {
            live.size_bytes = live.size_bytes.map(|_| size_bytes);
            // The place of a member that was too old has one that is not.
            let is_whole = |place: &usize| !lost.contains(&(*place as u32));
            let whole: Vec<usize> = (0..members.len()).filter(is_whole).collect();
            live.left_out.retain(|line| !whole.iter().any(|place| is_stale_line(line, *place)));
        }
        tell_news(turn, &record, news);
        if has_grown {
            tell_of_growth(turn, &name, size_bytes);
        }
        let mut next =
            RegisteredArray { level, size_bytes, events, spares, incoming, ..record.clone() };
        next.record_places(&members);
        tell_of_spares(turn, &record, &next);
        next.failed_drives = failed_drives(&record, &next, &lost, Date::now());
        let is_kept = |it: &&DeviceSpec| awaited.contains(*it) && !next.spares.contains(*it);
        let kept: Vec<DeviceSpec> = record.spares.iter().filter(is_kept).cloned().collect();
        next.spares.extend(kept);
        let is_kept = |it: &&DeviceSpec| arriving.contains(*it) && !next.incoming.contains(*it);
        let kept: Vec<DeviceSpec> = record.incoming.iter().filter(is_kept).cloned().collect();
        next.incoming.extend(kept);
        if record.read_only {
            // None of it is on a device, so none of it is to be on record.
            turn.engine.array_recorded(&name, events);
            continue;
        }
        if let Some(pool) = record.settings.spare_pool.clone().filter(|_| spares_wanted > 0) {
            wanting.push(Wanting { may_lose, name: name.clone(), pool, spares_wanted });
        }
        if put(turn, &name, &record, next) {
            turn.engine.array_recorded(&name, events);
        }
    }
    wanting.sort();
    turn.wanting = wanting;
    have_all_said
}

/// Says in the log what an array has done, and makes events of it.
/// Says in the log that an array has its new size, and how its volume gets it.
fn tell_of_growth(turn: &mut Turn, name: &ArrayName, size_bytes: u64) {
    let volume = turn.user_of_array(name, None).map_or_else(String::new, |volume| {
        format!(
            "; volume {volume} has that after `voltier stop {volume}` and `voltier start {volume}`"
        )
    });
    let size = format_size(size_bytes);
    turn.engine
        .log(&format!("array {name}: all data have moved, and its size is {size} now{volume}"));
}

fn tell_news(turn: &mut Turn, record: &RegisteredArray, news: Vec<ArrayNews>) {
    let name = &record.name;
    for ArrayNews { line, is_warning, event, scrubbed } in news {
        scrubbed.into_iter().for_each(|found| turn.scrubs.ended(record.uuid, found));
        if let Some(kind) = event {
            let severity = if is_warning { Severity::Warning } else { Severity::Info };
            let event = Event { severity, ..Event::of(kind, name.as_str(), &*line) };
            turn.tell_event(event);
        }
        let line = format!("array {name}: {line}");
        if is_warning { turn.engine.warn(&line) } else { turn.engine.log(&line) }
    }
}

/// The members that were lost and of which nobody has taken note: those of before, and what is new. One that is back in
/// its place is none, nor one in whose place a user has put another drive.
fn failed_drives(
    before: &RegisteredArray,
    next: &RegisteredArray,
    lost: &[u32],
    now: Date,
) -> Vec<FailedDrive> {
    let mut failed = before.failed_drives.clone();
    for (place, member) in (0..).zip(&before.members) {
        let Some(device) = member else { continue };
        let in_place = next.members.get(place as usize).and_then(Option::as_ref);
        let has_spare = in_place.is_some_and(|it| it != device && before.spares.contains(it));
        let is_known = failed.iter().any(|it| it.member == place && it.device == *device);
        if !is_known && (has_spare || lost.contains(&place) && in_place == Some(device)) {
            failed.push(FailedDrive { device: device.clone(), member: place, since: now });
        }
    }
    failed.retain(|it| {
        let in_place = next.members.get(it.member as usize).and_then(Option::as_ref);
        let is_back = in_place == Some(&it.device) && !lost.contains(&it.member);
        let is_replaced =
            in_place.is_some_and(|device| *device != it.device && before.incoming.contains(device));
        let is_elsewhere = next.spares.contains(&it.device)
            || in_place != Some(&it.device) && next.members.contains(&Some(it.device.clone()));
        !(is_back || is_replaced || is_elsewhere)
    });
    failed
}

/// Tells of spares that are members by now.
fn tell_of_spares(turn: &mut Turn, before: &RegisteredArray, next: &RegisteredArray) {
    for spare in before.spares.iter().filter(|it| !next.spares.contains(it)) {
        let Some(place) = next.members.iter().position(|it| it.as_ref() == Some(spare)) else {
            continue;
        };
        let pool = next.settings.spare_pool.as_ref();
        let in_pool = pool.and_then(|pool| turn.registry.find_pool(pool));
        let left = match in_pool {
            Some(pool) => format!(
                "{} left, and {} in the pool {}",
                next.spares.len(),
                pool.spares.len(),
                pool.name
            ),
            None => format!("{} left", next.spares.len()),
        };
        let text = format!("the spare {spare} takes the place of member {place}; {left}");
        turn.tell(&SPARE_USED, next.name.as_str(), text);
    }
}

/// Puts a record in the place of that of before; whether it is on the medium.
fn put(turn: &mut Turn, name: &ArrayName, before: &RegisteredArray, next: RegisteredArray) -> bool {
    if next == *before {
        return true;
    }
    turn.unfit_spares.retain(|(array, _), _| array != name);
    let trouble = turn.registry.trouble().cloned();
    let recorded = turn.registry.put_array(next);
    let is_recorded = recorded.is_ok();
    // Tried again every second: told once.
    if recorded.as_ref().err() != trouble.as_ref() {
        turn.note_array(name, recorded);
    }
    is_recorded
}
