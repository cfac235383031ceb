//! SSDs that go away while their volumes serve.

use voltier_cache::Mode;
use voltier_control::protocol::Request;
use voltier_control::{ByteRange, VolumeState};

use super::fixture::{Fixture, name};
use super::late::{WAIT, now, waits_for};

#[test]
fn an_ssd_that_goes_away_with_dirty_lines_is_awaited_and_nothing_is_recorded_as_lost() {
    for drain in [false, true] {
        let mut fixture = Fixture::with_volume(Mode::WriteBack);
        fixture.restart_and_wait(true, WAIT);
        fixture.steer(|books| books.dirty = 3);
        let job = drain.then(|| fixture.service.handle(Request::Flush { name: name() }));
        fixture.take_away("ssd");
        fixture.steer(|books| (books.ssd_failed, books.ssd_is_gone) = (true, true));
        assert!(fixture.service.notice_lost_ssds());
        let begun = now();
        fixture.steer(|books| (books.ssd_failed, books.ssd_is_gone) = (false, false));
        waits_for(&fixture.state(), "SSD", "/ssd");
        let cache = fixture.registry().volumes()[0].cache.clone().unwrap();
        assert_eq!((cache.failed, cache.maybe_dirty, cache.dirty_lines), (None, true, 3));
        assert!(!fixture.service.step_jobs(), "{job:?} has ended");
        assert!(!fixture.calls().contains(&"recorded v".to_owned()), "the gate stays closed");
        fixture.look(begun, 31);
        assert_eq!(fixture.state().state, VolumeState::Failed);
        assert!(fixture.state().error.contains("the newest data of 3 lines"));
        fixture.bring_back("ssd");
        fixture.look(begun, 600);
        assert_eq!(fixture.state().state, VolumeState::Running, "{}", fixture.state().error);
    }
}

#[test]
fn an_ssd_that_goes_away_clean_is_recorded_as_lost() {
    let fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.steer(|books| (books.ssd_failed, books.ssd_is_gone) = (true, true));
    assert!(fixture.service.notice_lost_ssds());
    assert!(fixture.registry().volumes()[0].cache.as_ref().unwrap().failed.is_some());
    assert_eq!(fixture.calls(), ["open Format", "recorded v"]);
}

#[test]
fn a_stop_right_after_an_ssd_went_away_records_its_dirty_lines_and_no_loss() {
    let fixture = Fixture::with_volume(Mode::WriteBack);
    let lost = ByteRange { offset_bytes: 0, length_bytes: 4096 };
    fixture.steer(|books| (books.dirty, books.lost) = (1, vec![lost]));
    fixture.take_away("ssd");
    fixture.steer(|books| (books.ssd_failed, books.ssd_is_gone) = (true, true));
    fixture.service.stop();
    let cache = fixture.registry().volumes()[0].cache.clone().unwrap();
    assert_eq!((cache.failed, cache.maybe_dirty, cache.dirty_lines), (None, true, 1));
    assert_eq!((cache.lost_total, cache.lost), (0, Vec::new()));
}
