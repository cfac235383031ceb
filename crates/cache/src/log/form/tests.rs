//! The log formed, kept and undone: records without a drive.

use super::*;
use crate::config::{FormatOptions, LineSize};
use crate::map::contents::CleanCopy;
use crate::policy::PolicyKind;

#[test]
fn news_of_an_older_copy_does_not_make_a_newer_one_in_the_same_slot_clean() {
    let (line_size, policy, uuid) = (LineSize::DEFAULT, PolicyKind::Lru, [1; 16]);
    let format = FormatOptions { line_size, policy, uuid };
    let geometry = Geometry::plan(&format, 64 << 20, 1 << 21).unwrap();
    let mut map = Contents::new(geometry.clone(), policy, 1).unwrap();
    let mut log = LogState::new(geometry.clone(), uuid, false);
    let (line, slot, crc, mask) = (Line(7), Slot(5), 0xaabb_ccdd, Some(0b11));
    map.put(PlacedLine { line, slot, crc, dirty: true, mask, pending: false }, None);
    let news = |crc_bits, mask| Change::Clean(CleanCopy { line, slot, crc_bits, mask });
    let mut builder = Builder::new(&geometry, log.position);
    log.apply(news(0xbb_ccde, mask), &mut map, &mut builder);
    log.apply(news(0xbb_ccdd, Some(0b1)), &mut map, &mut builder);
    assert!(map.index().is_dirty(slot) && builder.entries.is_empty());
    log.apply(news(0xbb_ccdd, mask), &mut map, &mut builder);
    assert!(!map.index().is_dirty(slot) && builder.entries.len() == 1);
}

#[test]
fn no_record_is_formed_while_too_many_wait_for_a_flush() {
    let (line_size, policy, uuid) = (LineSize::DEFAULT, PolicyKind::Lru, [1; 16]);
    let format = FormatOptions { line_size, policy, uuid };
    let geometry = Geometry::plan(&format, 64 << 20, 1 << 21).unwrap();
    let mut map = Contents::new(geometry.clone(), policy, 1).unwrap();
    let mut log = LogState::new(geometry.clone(), uuid, false);
    let unit = geometry.first_head_in(SegmentSlot(0));
    let (segment, next_segment, next_segment_unit) = (Segment(0), Segment(1), unit);
    log.position =
        Position { segment, unit, slot: SegmentSlot(1), next_segment, next_segment_unit };
    log.resume(&mut map);
    log.ending = true;
    let effects = |line: u64| {
        // As a record of one line has them.
        let mut effects = Vec::with_capacity(120);
        let (line, placed) = (Line(line), Some(Slot(line as u32)));
        effects.push(Effect { line, placed, replaced: None, lost: 0 });
        effects
    };
    let slots = u64::from(geometry.slot_count());
    (0..slots / 4).for_each(|line| log.not_durable.keep(1 + line, effects(line)));
    let kept_bytes = log.not_durable.memory_bytes();
    assert!(kept_bytes as u64 <= 64 * slots, "{kept_bytes} bytes for {slots} slots");
    log.next_sequence = slots;
    log.queues.push(Sender::Client, Change::Drop { line: Line(1) });
    map.put(
        PlacedLine {
            line: Line(1),
            slot: Slot(9),
            crc: 0,
            dirty: true,
            mask: None,
            pending: false,
        },
        None,
    );
    assert!(matches!(log.form_record(&mut map), Formed::Blocked));
    log.note_durable(2);
    assert!(matches!(log.form_record(&mut map), Formed::Record(_)));
}

#[test]
fn a_log_that_ends_undoes_what_it_has_not_acknowledged() {
    let (line_size, policy, uuid) = (LineSize::DEFAULT, PolicyKind::Lru, [1; 16]);
    let format = FormatOptions { line_size, policy, uuid };
    let geometry = Geometry::plan(&format, 64 << 20, 1 << 21).unwrap();
    let mut map = Contents::new(geometry.clone(), policy, 1).unwrap();
    let mut log = LogState::new(geometry.clone(), uuid, true);
    let unit = geometry.first_head_in(SegmentSlot(0));
    let (segment, next_segment, next_segment_unit) = (Segment(0), Segment(1), unit);
    log.position =
        Position { segment, unit, slot: SegmentSlot(1), next_segment, next_segment_unit };
    log.resume(&mut map);
    // A log that ends keeps no segments in reserve.
    log.ending = true;
    let write = |line, byte: u8, mask| {
        let data = Bytes::copy_of(&vec![byte; 4096]);
        let source = Source::Write { dirty: true };
        Change::Data { line: Line(line), data, mask, source }
    };
    let form = |log: &mut LogState, map: &mut Contents, changes: Vec<Change>| {
        for change in changes {
            let is_of_client = matches!(change, Change::Data { .. } | Change::Drop { .. });
            let sender = if is_of_client { Sender::Client } else { Sender::Cache };
            log.queues.push(sender, change);
        }
        assert!(matches!(log.form_record(map), Formed::Record(_)));
    };
    let acknowledged =
        vec![write(1, 1, None), write(2, 2, Some(0b1)), write(3, 3, None), write(4, 4, None)];
    form(&mut log, &mut map, acknowledged);
    log.record_done(1, &mut map);
    let state = |map: &Contents| {
        let of = |line| {
            let (index, slot) = (map.index(), map.index().lookup(Line(line))?);
            let flags = (index.is_dirty(slot), index.is_pending(slot));
            Some((slot, index.crc_bits(slot), index.mask(slot), flags))
        };
        ((1..7).map(of).collect::<Vec<_>>(), map.index().dirty_lines())
    };
    let before = state(&map);
    let (slot, crc_bits, mask, _) = before.0[0].expect("line 1 is there");
    let clean = Change::Clean(CleanCopy { line: Line(1), slot, crc_bits, mask });
    form(&mut log, &mut map, vec![clean, write(2, 20, None), write(5, 5, None)]);
    form(&mut log, &mut map, vec![write(1, 10, None), Change::Drop { line: Line(3) }]);
    form(&mut log, &mut map, vec![write(2, 21, Some(0b11)), write(3, 30, None)]);
    assert_ne!(state(&map), before);
    log.undo(&mut map);
    assert_eq!(state(&map), before);
    let batch = log.order.batch(u64::MAX, 100).expect("record 1 waits");
    assert_eq!(batch.versions.keys().map(|line| line.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(log.records_in_flight(), 0);
    map.audit().expect("the books balance");
}
