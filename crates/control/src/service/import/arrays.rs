//! Records of arrays, from the labels of their members.

use std::collections::BTreeMap;

use voltier_array::MemberState;

use super::done::Done;
use super::find::{Found, FoundArray, FoundMember};
use crate::engine::MemberLabel;
use crate::error::{ControlError, ControlResult};
use crate::import_report::ImportedArray;
use crate::name::ArrayName;
use crate::records::{Identity, RegisteredArray};
use crate::service::arrays;
use crate::service::state::turn::{Turn, of_all};
use crate::spec::DeviceSpec;

/// An array that is to be put on record.
pub(super) struct ArrayPlan {
    pub(super) record: RegisteredArray,
    /// All devices that say they are of it.
    devices: Vec<DeviceSpec>,
    /// Devices that wait to replace a lost member.
    spares: Vec<DeviceSpec>,
    /// Lines for the user about devices that are left alone.
    pub(super) notes: Vec<String>,
}

impl ArrayPlan {
    pub(super) fn reported(&self) -> ImportedArray {
        ImportedArray { spares: self.spares.clone(), ..reported(&self.record) }
    }
}

/// An array of a record, for the answer.
pub(super) fn reported(record: &RegisteredArray) -> ImportedArray {
    ImportedArray {
        name: record.name.clone(),
        uuid: record.uuid,
        level: record.level,
        members: record.members.clone(),
        journal: record.journal.clone(),
        spares: record.spares.clone(),
    }
}

/// The records of all arrays that were found.
///
/// # Errors
/// When an array is on record, has another one's name, or cannot be assembled.
pub(super) fn plan(
    service: &mut Turn,
    found: &Found,
    chosen: Option<&ArrayName>,
) -> ControlResult<Vec<ArrayPlan>> {
    let mut plans: Vec<ArrayPlan> = Vec::new();
    for (uuid, array) in &found.arrays {
        let plan = plan_one(service, *uuid, array, chosen)?;
        if let Some(other) = plans.iter().find(|other| other.record.name == plan.record.name) {
            return Err(name_is_taken(&plan.record.name, other.record.uuid));
        }
        plans.push(plan);
    }
    for (device, label) in &found.spares {
        match plans.iter_mut().find(|plan| plan.record.uuid == label.owner) {
            Some(plan) => plan.spares.push(device.clone()),
            None => {
                return Err(ControlError::failed(format!(
                    "{device} is a spare of {}, of which no member was given; leave it out: \
                     `voltier array add-spare` and `voltier array spare-pool add` take it later",
                    label.name
                )));
            }
        }
    }
    Ok(plans)
}

fn name_is_taken(name: &ArrayName, uuid: Identity) -> ControlError {
    ControlError::failed(format!(
        "another array `{name}` ({uuid}) exists; import this one alone, under another name: `voltier import \
         --name NEW DEVICE...`"
    ))
}

fn plan_one(
    service: &Turn,
    uuid: Identity,
    array: &FoundArray,
    chosen: Option<&ArrayName>,
) -> ControlResult<ArrayPlan> {
    if let Some(known) = service.registry.array_with(uuid) {
        return Err(ControlError::failed(format!(
            "the array {0} is already recorded; `voltier array show {0}` shows its state, \
             `voltier array assemble DEVICE...` uses these members",
            known.name
        )));
    }
    let Some(newest) = array.newest() else {
        let (device, name) = array.journals.first().expect("an array was found by some label");
        return Err(ControlError::failed(format!(
            "{device} is the journal of the array {name}; give its members as well"
        )));
    };
    let name = match chosen {
        Some(name) => name.clone(),
        None => newest.name.parse().map_err(|_| {
            ControlError::failed(format!(
                "the name of the array {uuid} is not valid here; give it another with --name NEW"
            ))
        })?,
    };
    if let Some(other) = service.registry.find_array(&name) {
        return Err(name_is_taken(&name, other.uuid));
    }
    is_complete(&name, newest, array)?;
    Ok(plan_of(name, newest, array))
}

/// Refuses an array of which more is missing than it can do without.
fn is_complete(name: &ArrayName, newest: &MemberLabel, array: &FoundArray) -> ControlResult<()> {
    let mut lost: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (place, own) in newest.places.iter().enumerate() {
        if own.state != MemberState::InService || !array.has_member(place) {
            lost.entry(own.group).or_default().push(place.to_string());
        }
    }
    let redundancy = newest.redundancy as usize;
    if let Some(places) = lost.values().find(|places| places.len() > redundancy) {
        return Err(ControlError::failed(format!(
            "of the array {name} (level {}) the members {} were not found or are lost, and it \
             can do without {redundancy} at most; connect them, or give them as well if they are \
             files",
            newest.level,
            places.join(", ")
        )));
    }
    if newest.has_journal_device && array.journals.is_empty() {
        return Err(ControlError::failed(format!(
            "the journal device of the array {name} was not found, and the array needs it; \
             connect it, or give it as well if it is a file; `voltier array assemble -f DEV...` \
             goes on without it"
        )));
    }
    Ok(())
}

fn plan_of(name: ArrayName, newest: &MemberLabel, array: &FoundArray) -> ArrayPlan {
    let mut members: Vec<Option<(u64, DeviceSpec)>> = vec![None; newest.places.len()];
    for FoundMember { device, label, .. } in &array.members {
        let Some(place) = members.get_mut(label.place as usize) else { continue };
        // Of two that were the same member one after the other, the newer one.
        if place.as_ref().is_none_or(|(event, _)| *event < label.event) {
            *place = Some((label.event, device.clone()));
        }
    }
    let journals = array.journals.iter().map(|(device, _)| device);
    let journal = journals.clone().next().cloned();
    let devices = array.members.iter().map(|member| &member.device).chain(journals);
    let devices = devices.cloned().collect();
    let members = members.into_iter().map(|place| place.map(|(_, device)| device)).collect();
    // Nobody knows whether these members are the newest: the assembly asks for what is missing.
    let record = RegisteredArray { members, journal, ..newest.record(name) };
    ArrayPlan { record, devices, spares: Vec::new(), notes: array.notes.clone() }
}

/// Assembles an array and records it; what there is to know about it.
///
/// # Errors
/// The array's, as at any start; nothing of it is on record then.
pub(super) fn open(
    service: &mut Turn,
    plan: ArrayPlan,
    done: &mut Done,
) -> ControlResult<Vec<String>> {
    let ArrayPlan { record, devices, spares, notes: left_alone } = plan;
    let name = record.name.clone();
    let told = |error: ControlError| {
        ControlError::failed(format!("the array {name} is not imported: {error}"))
    };
    let opened =
        service.opening(of_all(&devices)).open_array(&record, &devices, false).map_err(told)?;
    let mut notes: Vec<String> = left_alone
        .iter()
        .chain(&opened.left_out)
        .map(|line| format!("array {name}: {line}"))
        .collect();
    arrays::open::keep(service, record, opened, Vec::new())?;
    done.arrays.push(name.clone());
    service.engine.log(&format!("array {name}: imported from what its members say"));
    for spare in spares {
        if let Err(error) = arrays::members::take_spare(service, &name, spare.clone(), false) {
            notes.push(format!("array {name}: the spare {spare} is left out: {error}"));
        }
    }
    notes.push(format!(
        "the array {name} has the default settings and no spare pool; `voltier array set {name} \
         KEY=VALUE` changes them"
    ));
    Ok(notes)
}
