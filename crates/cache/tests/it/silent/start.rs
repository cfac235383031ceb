//! Starts with a drive that does not answer.

use voltier_cache::{Mode, OpenError};

use crate::silent::world::{DEADLINE_S, SILENT_S, with_world};

#[test]
fn a_start_ends_with_a_sentence_when_a_drive_does_not_answer() {
    with_world(|world| async move {
        let cache = world.clean(Mode::WriteBack, 16).await;
        cache.stop().await.expect("the cache stops in order");
        for (hang, name) in [(&world.ssd_hang, "the SSD"), (&world.origin_hang, "the backing disk")]
        {
            hang.begin();
            let begun = world.handle.now();
            let error = world.try_open(Mode::WriteBack).await.map(|_| ()).expect_err("it hangs");
            let is_it = matches!(error, OpenError::Silent { device, .. } if device == name);
            assert!(is_it && error.to_string().contains(&format!("{DEADLINE_S} s")), "{error}");
            assert!(world.handle.now() - begun < SILENT_S * 1_000_000_000);
            hang.end();
            world.seconds(1).await;
        }
        world.open(Mode::WriteBack).await.stop().await.expect("nothing was changed");
    });
}
