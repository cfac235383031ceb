//! Labels that only a newer program can read: nothing is opened without what they are of, or written over it.

use voltier_control::protocol::Request;
use voltier_control::{Identity, VolumeState};

use super::fixture::{Fixture, name};

const DRIVES: [&str; 3] = ["d1", "d2", "d3"];
const WHY: &str = "of a newer Voltier";

impl Fixture {
    fn has_newer(&self, drive: &str, of: Identity) {
        self.steer(|books| drop(books.newer.insert(self.path(drive), of)));
    }
}

#[test]
fn a_volume_does_not_write_over_a_member_that_has_the_path_of_its_origin() {
    for of_another in [false, true] {
        let mut fixture = Fixture::array_of(&DRIVES);
        fixture.steer(|books| books.are_unmarked = true);
        let origin = fixture.device("hdd");
        fixture.service.handle(Request::Create { name: name(), origin, cache: None });
        let label = fixture.take_label("d3");
        fixture.has_newer("hdd", if of_another { Identity([3; 16]) } else { label.array });
        fixture.restart(true);
        let (state, calls) = (fixture.state(), fixture.calls());
        assert_eq!(calls.contains(&"plain v".to_owned()), of_another, "{}", state.error);
        if !of_another {
            assert_eq!(state.state, VolumeState::Failed);
            assert!(state.error.contains(WHY), "{}", state.error);
        }
    }
}
