//! Open arrays of all cores: made, opened, moved to other cores, closed and shown.

use std::sync::Arc;

use voltier_block::{BlockDevice, Buf, Lba};
use voltier_control::engine::{ArrayDevices, Arrays, Members, OpenedArray};
use voltier_control::safety::HEAD_BYTES;
use voltier_control::{
    ArrayDetail, ArrayLevel, ArrayName, ControlError, ControlResult, DeviceSpec, RegisteredArray,
};

use crate::call::Way;
use crate::core_engine::CoreEngine;
use crate::drives::KnownDevice;
use crate::fault::Fault;
use crate::homes::{ArrayHome, Held};
use crate::loss::{EventGate, KnownEvents};
use crate::table::{self, OpenArray};
use crate::{array_news, array_status, assemble};

/// Brings an array to the core of the volume that is to use it. Nobody uses it yet.
pub(super) fn bring(
    engine: &CoreEngine,
    device: Option<&DeviceSpec>,
    core: usize,
) -> ControlResult<()> {
    let Some(name) = device.and_then(DeviceSpec::array) else { return Ok(()) };
    let Some(home) = engine.homes.find_array(name).filter(|home| home.core != core) else {
        return Ok(());
    };
    let record = home.record.get().clone();
    let now = engine.array_devices(name).ok_or_else(|| table::not_open(name))?;
    if let Some(device) = now.incoming.first() {
        return Err(ControlError::failed(format!(
            "the array {name} is filling {device}; try again when that is done"
        )));
    }
    let members = now.members.into_iter().flatten();
    let devices: Vec<DeviceSpec> = members.chain(record.journal.clone()).collect();
    let settings = record.settings.clone();
    engine.close_array(name)?;
    assemble_on(engine, core, &record, &devices, false)?;
    engine.configure_array(name, &settings);
    now.spares.iter().try_for_each(|spare| engine.add_spare(name, spare))
}

fn assemble_on(
    engine: &CoreEngine,
    core: usize,
    record: &RegisteredArray,
    devices: &[DeviceSpec],
    force: bool,
) -> ControlResult<OpenedArray> {
    let memory = engine.room_for(devices.iter())?;
    let (plan, present) = (record.clone(), devices.to_vec());
    let (way, fault) = engine.new_home(core);
    let told = fault.clone();
    let opened =
        way.call(move |handle| assemble::assemble(handle, plan, present, force, told, memory))?;
    let mut record = record.clone();
    if opened.journal.is_some() {
        record.journal.clone_from(&opened.journal);
    }
    take_home(engine, core, way, fault, record);
    Ok(opened)
}

/// An array is open from now on. It wakes the control plane at changes, and has them wait behind the gate.
fn take_home(
    engine: &CoreEngine,
    core: usize,
    way: Way,
    fault: Arc<Fault>,
    record: RegisteredArray,
) {
    let name = record.name.clone();
    let (known, record) = (Arc::new(KnownEvents::default()), Held::new(record));
    let home = ArrayHome { core, way, fault, record, known_events: known.clone() };
    engine.homes.add_array(&name, home);
    if let Some(waker) = engine.waker() {
        let gate = EventGate { known, waker };
        // The array was opened a moment ago.
        let _ = engine.ask_array(&name, |handle, open| async move {
            let waker = gate.waker.clone();
            open.array.set_listener(move || waker());
            open.array.on_record(move |events| Box::pin(gate.clone().pass(handle.clone(), events)));
            Ok(())
        });
    }
}

impl Arrays for CoreEngine {
    fn has_array(&self, name: &ArrayName) -> bool {
        self.homes.find_array(name).is_some()
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        let core = self.deal();
        let memory = self.room_for(record.devices())?;
        let (way, fault) = self.new_home(core);
        let (plan, told) = (record.clone(), fault.clone());
        let opened = way.call(move |handle| assemble::create(handle, plan, told, memory))?;
        take_home(self, core, way, fault, record.clone());
        Ok(opened)
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let core = self.deal();
        assemble_on(self, core, record, devices, force)
    }

    fn close_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let Some(home) = self.homes.remove_array(name) else { return Ok(0) };
        let name = name.clone();
        home.way.call(move |_| assemble::stop(name))
    }

    fn take_array_fault(&self, name: &ArrayName) -> Option<String> {
        let why = self.homes.find_array(name)?.fault.words()?;
        self.homes.remove_array(name);
        Some(why)
    }

    fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>> {
        let own = name.clone();
        self.call_array(name, move |_, open| async move {
            let array = &open.array;
            let bytes = array.limits().bytes().min(HEAD_BYTES as u64) as usize;
            let read = array.read(Lba(0), Buf::new(bytes)).await;
            let read =
                read.map_err(|error| ControlError::failed(format!("reading array:{own}: {error}")));
            read.map(|buf| buf.to_vec())
        })
    }

    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> {
        self.ask_array(name, |_, open| async move { devices(&open) }).ok()
    }

    fn array_recorded(&self, name: &ArrayName, events: u64) {
        if let Some(home) = self.homes.find_array(name) {
            home.known_events.note(events);
        }
    }

    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail) {
        let (own, plain) = (name.clone(), status.clone());
        let fill = move |_, _| async move { array_status::fill(&own, plain) };
        let filled = self.ask_array(name, fill);
        match filled {
            Ok(filled) => *status = filled,
            Err(error) => status.error = error.message,
        }
    }
}

/// The devices of an array now.
fn devices(open: &OpenArray) -> ControlResult<ArrayDevices> {
    open.place_pending();
    if open.devices.borrow().len() != open.array.geometry().member_count() {
        return Err(ControlError::failed(format!(
            "{} grows: the command says by what",
            open.name()
        )));
    }
    let events = open.array.status().map_or(0, |status| status.event);
    let device = |known: &KnownDevice| known.device.clone();
    let members = open.devices.borrow().iter().map(|it| it.as_ref().map(device)).collect();
    let pending = open.pending.borrow();
    let of = |is_spare| {
        let those = pending.iter().filter(move |it| it.is_spare == is_spare);
        those.map(|it| device(&it.known)).collect()
    };
    let array = &open.array;
    let news = array_news::take(open);
    Ok(ArrayDevices {
        level: ArrayLevel(array.geometry().level()),
        size_bytes: array.limits().bytes(),
        events,
        members,
        spares: of(true),
        incoming: of(false),
        spares_wanted: array.spares_wanted(),
        may_lose: open.may_lose(),
        lost: open.lost_places(),
        lost_too_many: open.lost_too_many(),
        news,
    })
}
