//! The registry file: any bytes, and any body under a checksum that fits; then a daemon that starts
//! on what was taken.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use voltier_control::protocol::{Request, Response};
use voltier_control::{
    CacheRecord, REGISTRY_FILE, RegisteredArray, Registry, Service, VolumeRecord,
};
use voltier_sim::Fake;

use crate::control::{Engine, Sandbox};

/// Feeds one file.
pub(crate) fn run(input: &[u8]) {
    let sandbox = Sandbox::fresh();
    let state = sandbox.state();
    let path = state.join(REGISTRY_FILE);
    let file = match input {
        [b'=', body @ ..] => sealed(body),
        _ => input.to_vec(),
    };
    fs::write(&path, &file).expect("the state folder takes a file");
    let mut registry = match Registry::load(&state) {
        Ok(registry) => registry,
        Err(error) => {
            assert!(!error.message.contains('\n') && error.message.contains(REGISTRY_FILE));
            assert_eq!(fs::read(&path).expect("it is there"), file, "refused, and changed");
            return;
        }
    };
    let volumes = registry.volumes().to_vec();
    let names: BTreeSet<_> = volumes.iter().map(|volume| &volume.name).collect();
    assert_eq!(names.len(), volumes.len(), "two volumes of one name");
    let arrays = registry.arrays().to_vec();
    for array in arrays {
        let inside = |member: Option<_>| member.map(|member| sandbox.device(member));
        let members = array.members.into_iter().map(inside).collect();
        let [spares, incoming] = [array.spares, array.incoming]
            .map(|devices| devices.into_iter().map(|device| sandbox.device(device)).collect());
        let journal = array.journal.map(|device| sandbox.device(device));
        let array = RegisteredArray { members, spares, incoming, journal, ..array };
        registry.put_array(array).expect("the state folder takes a file");
    }
    for volume in volumes {
        registry.put(inside_sandbox(volume, &sandbox)).expect("the state folder takes a file");
    }
    let again = Registry::load(&state).expect("its own file");
    assert_eq!(again.volumes(), registry.volumes());
    assert_eq!(again.arrays(), registry.arrays());
    serve(again);
}

/// The body with the head and the tail that make it a registry.
fn sealed(body: &[u8]) -> Vec<u8> {
    let head = r#"{"format":"voltier-registry","version":1,"features":[]"#;
    let crc = crc_fast::crc32_iscsi(&[head.as_bytes(), body].concat());
    let head = format!("{head},\"crc32c\":\"{crc:08x}\",\"registry\":\n");
    [head.as_bytes(), body, b"\n}\n"].concat()
}

fn inside_sandbox(volume: VolumeRecord, sandbox: &Sandbox) -> VolumeRecord {
    VolumeRecord {
        origin: sandbox.device(volume.origin),
        cache: volume
            .cache
            .map(|cache| CacheRecord { device: sandbox.device(cache.device), ..cache }),
        ..volume
    }
}

/// A daemon starts, shows, and stops.
fn serve(registry: Registry) {
    let engine = Engine::default();
    let service = Service::new(Fake(engine.clone()), registry);
    service.start(false, Duration::ZERO);
    service.notice_lost_ssds();
    service.step_jobs();
    let shown = service.handle(Request::Show { name: None, over_s: None });
    let Response::Volumes { volumes } = shown else { panic!("no list: {shown:?}") };
    for volume in volumes {
        let one = service.handle(Request::Show { name: Some(volume.name.clone()), over_s: None });
        assert!(matches!(one, Response::Volume { .. }), "{one:?}");
        service.handle(Request::Unexport { name: volume.name.clone(), export: None, now: true });
        service.handle(Request::Delete { name: volume.name, flush: false });
    }
    service.stop();
    engine.is_at_rest();
}
