//! Making, assembling, changing and deleting arrays.

use std::time::Instant;

use voltier_array::{Consistency, Integrity};

use super::absence::Missing;
use super::admit::Beside;
use super::apart::apart;
use super::claims::Subject;
use super::live::{LiveArray, now};
use super::spare_labels;
use super::survey::Survey;
use super::turn::Turn;
use super::{late, stops, subjects};
use crate::array_settings::ArraySettings;
use crate::array_status::{ArrayDetail, ArrayState};
use crate::engine::{Engine, JournalDeviceLabel, MemberLabel, OpenedArray};
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::{ArrayRequest, MemberName, NewArray, Response};
use crate::records::{Identity, RegisteredArray};
use crate::safety::Role;
use crate::spec::DeviceSpec;
use crate::suggest;
use crate::units::exact_size;

impl<E: Engine> Turn<E> {
    pub(super) fn array(&mut self, ask: ArrayRequest) -> ControlResult<Response> {
        match ask {
            ArrayRequest::Create { array, integrity } => self.create_array(array, integrity),
            ArrayRequest::Show { name: Some(name) } => {
                self.array_record(&name)?;
                Ok(self.array_response(&name, Vec::new()))
            }
            ArrayRequest::Show { name: None } => {
                let records = self.registry.arrays().to_vec();
                let arrays = records.iter().map(|record| self.array_status(record)).collect();
                Ok(Response::Arrays { arrays })
            }
            ArrayRequest::Assemble { devices, force } => self.assemble(devices, force),
            ArrayRequest::Start { name } => late::start_array(self, &name),
            ArrayRequest::Stop { name } => stops::stop_array(self, &name),
            ArrayRequest::Fail { name, member } => self.fail_member(&name, &member),
            ArrayRequest::Delete { name, erase } => self.delete_array(&name, erase),
            ArrayRequest::Replace { name, old, new, force } => {
                self.replace_member(&name, &old, new, force)
            }
            ArrayRequest::AddSpare { name, spare, force } => self.add_spare(&name, spare, force),
            ArrayRequest::Grow { name, by, devices, force } => {
                self.grow_array(&name, by, devices, force)
            }
            ArrayRequest::Rebuild { name } => self.start_task(&name, E::start_rebuild),
            ArrayRequest::Scrub { name, repair } => {
                self.start_task(&name, |engine, name| engine.start_scrub(name, repair))
            }
            ArrayRequest::Set { name, changes } => self.set_array(&name, &changes),
            ArrayRequest::PoolAdd { pool, devices, force } => {
                self.add_to_pool(&pool, devices, force)
            }
            ArrayRequest::PoolRemove { pool, devices } => self.remove_from_pool(&pool, &devices),
            ArrayRequest::PoolShow { pool } => self.show_pools(pool.as_ref()),
            ArrayRequest::SetJournal { name, journal, force } => {
                self.set_journal(&name, journal, force)
            }
        }
    }

    fn create_array(&mut self, new: NewArray, integrity: Integrity) -> ControlResult<Response> {
        let NewArray { name, level, chunk_bytes, consistency, members, spares, journal, force } =
            new;
        if self.registry.find_array(&name).is_some() {
            return Err(ControlError::failed(format!(
                "an array `{name}` exists; choose another name or `voltier array delete {name}` \
                 first"
            )));
        }
        level.check(members.len(), chunk_bytes)?;
        if journal.is_some() && consistency != Consistency::Journal {
            return Err(ControlError::usage(format!(
                "--journal goes with --consistency journal, not {consistency}"
            )));
        }
        if integrity != Integrity::None && !level.has_redundancy() {
            return Err(ControlError::usage(format!(
                "level {} has no redundancy to mend blocks from: leave --integrity out",
                level.word()
            )));
        }
        let all: Vec<DeviceSpec> = members.iter().chain(&spares).chain(&journal).cloned().collect();
        let sizes = self.admit_members(&all, force)?;
        let notes = unequal(&members, &sizes[..members.len()]);
        let uuid = self.engine.draw_identity()?;
        let (size_bytes, events) = (0, 0);
        let members = members.into_iter().map(Some).collect();
        let record = RegisteredArray {
            name,
            uuid,
            level,
            chunk_bytes,
            consistency,
            integrity,
            size_bytes,
            events,
            members,
            spares: Vec::new(),
            incoming: Vec::new(),
            journal,
            stopped: false,
            settings: ArraySettings::default(),
        };
        // Nobody uses it yet, so nothing can be acknowledged before the record is written.
        let name = record.name.clone();
        let opened = apart(self).create_array(&record)?;
        self.keep_array(record, opened, Vec::new())?;
        for spare in spares {
            self.take_spare(&name, spare, force)?;
        }
        Ok(self.array_response(&name, notes))
    }

    /// Checks all members of a new array; their sizes.
    fn admit_members(&mut self, members: &[DeviceSpec], force: bool) -> ControlResult<Vec<u64>> {
        let mut sizes = Vec::with_capacity(members.len());
        for (at, member) in members.iter().enumerate() {
            if member.array().is_some() {
                return Err(ControlError::usage(format!(
                    "{member} cannot be a member: arrays do not stand on arrays"
                )));
            }
            let before = Beside::Members(&members[..at]);
            sizes.push(self.admit(member, Role::Cache, force, before)?.size_bytes);
        }
        Ok(sizes)
    }

    /// Records an array that the engine has opened, and gives it its settings; closed again when that fails.
    pub(super) fn keep_array(
        &mut self,
        mut record: RegisteredArray,
        opened: OpenedArray,
        notes: Vec<String>,
    ) -> ControlResult<Response> {
        let name = record.name.clone();
        learn(&mut record, &opened);
        let settings = record.settings.clone();
        if let Err(error) = self.registry.put_array(record) {
            let closed = apart(self).close_array(&name);
            self.note_array(&name, closed);
            return Err(error);
        }
        let (size_bytes, left_out) = (Some(opened.size_bytes), opened.left_out);
        let live = LiveArray { size_bytes, left_out, ..LiveArray::default() };
        self.live_arrays.insert(name.clone(), live);
        self.engine.configure_array(&name, &settings);
        Ok(self.array_response(&name, notes))
    }

    fn assemble(&mut self, devices: Vec<DeviceSpec>, force: bool) -> ControlResult<Response> {
        let label = self.labels(&devices)?;
        self.claim_array_of(label.array)?;
        let known = self.registry.arrays().iter().find(|array| array.uuid == label.array).cloned();
        if let Some(known) = &known
            && self.size_of_array(&known.name).is_ok()
        {
            return Err(ControlError::failed(format!(
                "the array {0} is assembled already; see `voltier array show {0}`",
                known.name
            )));
        }
        let name = match &known {
            Some(known) => known.name.clone(),
            None => self.free_name(&label.name)?,
        };
        self.claim_also(subjects::of_array(&self.registry, &name))?;
        let mut record = known.unwrap_or_else(|| RegisteredArray {
            name: name.clone(),
            uuid: label.array,
            level: label.level,
            chunk_bytes: label.chunk_bytes,
            consistency: label.consistency,
            integrity: label.integrity,
            size_bytes: 0,
            events: 0,
            members: Vec::new(),
            spares: Vec::new(),
            incoming: Vec::new(),
            journal: None,
            stopped: false,
            settings: ArraySettings::default(),
        });
        record.stopped = false;
        let opened = apart(self).open_array(&record, &devices, force)?;
        let left_out = opened.left_out.clone();
        self.keep_array(record, opened, left_out.clone())?;
        late::serve_again(self, &name, now());
        Ok(self.array_response(&name, left_out))
    }

    /// Has a recorded array for this command alone.
    fn claim_array_of(&mut self, uuid: Identity) -> ControlResult<()> {
        let known = self.registry.arrays().iter().find(|array| array.uuid == uuid);
        let Some(name) = known.map(|array| array.name.clone()) else { return Ok(()) };
        self.claim_also(subjects::of_array(&self.registry, &name))
    }

    /// The label that all these devices share: they are the members of one array, and free.
    fn labels(&mut self, devices: &[DeviceSpec]) -> ControlResult<MemberLabel> {
        let mut found: Option<(MemberLabel, &DeviceSpec)> = None;
        let mut journals = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let twice = devices[..at].iter().any(|other| self.is_same(other, device));
            if twice {
                return Err(ControlError::failed(format!("{device} is given twice; name it once")));
            }
            self.look_at(device, 0, "member")?;
            let Some(label) = apart(self).label_of(device)? else {
                let Some(journal) = apart(self).journal_label_of(device)? else {
                    return Err(ControlError::failed(format!(
                        "{device} is no member of an array; leave it out"
                    )));
                };
                self.is_nobody_elses(device, journal.array)?;
                journals.push((journal, device));
                continue;
            };
            self.is_nobody_elses(device, label.array)?;
            match &found {
                Some((first, other)) if first.array != label.array => {
                    return Err(ControlError::failed(format!(
                        "{device} belongs to the array {} ({}), and {other} to {} ({}); \
                         assemble one at a time",
                        label.name, label.array, first.name, first.array
                    )));
                }
                Some(_) => {}
                None => found = Some((label, device)),
            }
        }
        let of_another = |(journal, _): &&(JournalDeviceLabel, &DeviceSpec)| {
            found.as_ref().is_none_or(|(label, _)| label.array != journal.array)
        };
        match journals.iter().find(of_another) {
            Some((journal, device)) if found.is_none() => Err(ControlError::failed(format!(
                "{device} is the journal of the array {} ({}); name its members as well",
                journal.name, journal.array
            ))),
            Some((journal, device)) => Err(ControlError::failed(format!(
                "{device} is the journal of another array, {} ({}); leave it out",
                journal.name, journal.array
            ))),
            None => found.map(|(label, _)| label).ok_or_else(|| {
                ControlError::usage("no devices given; name the members of the array")
            }),
        }
    }

    /// The name that a label gives, if no other array has it.
    fn free_name(&self, text: &str) -> ControlResult<ArrayName> {
        let name: ArrayName =
            text.parse().map_err(|error: ControlError| ControlError::failed(error.message))?;
        if self.registry.find_array(&name).is_some() {
            return Err(ControlError::failed(format!(
                "another array `{name}` exists; `voltier array delete {name}` forgets it, its \
                 data stay, and `voltier array assemble` brings it back"
            )));
        }
        Ok(name)
    }

    fn fail_member(&mut self, name: &ArrayName, member: &MemberName) -> ControlResult<Response> {
        let record = self.array_record(name)?;
        self.size_of_array(name)?;
        let (place, member) = self.place_of(&record, member)?;
        let is_on_record = apart(self).fail_member(name, place)?;
        self.engine.log(&format!("array {name}: {member} was taken out of service on request"));
        // Spares are asked by others: they may hang as well.
        self.record_array_events();
        let late = format!(
            "{member} is out of service; the other members have not all written that down yet: `voltier \
             array show {name}` says which of them does not answer"
        );
        Ok(self.array_response(name, if is_on_record { Vec::new() } else { vec![late] }))
    }

    fn delete_array(&mut self, name: &ArrayName, erase: bool) -> ControlResult<Response> {
        let record = self.array_record(name)?;
        if let Some(user) = self.user_of_array(name, None) {
            return Err(ControlError::failed(format!(
                "the array {name} is in use by volume {user}; `voltier delete {user}` first"
            )));
        }
        if self.size_of_array(name).is_ok() {
            let closed = apart(self).close_array(name);
            self.note_array(name, closed);
        }
        self.live_arrays.remove(name);
        self.registry.remove_array(name)?;
        if erase {
            self.erase_labels(&record)?;
        }
        Ok(Response::Done)
    }

    /// Makes plain devices of the members. Each is told what became of it before the first error.
    fn erase_labels(&mut self, record: &RegisteredArray) -> ControlResult<()> {
        let mut result = Ok(());
        for member in record.devices().filter(|member| !member.is_volatile()) {
            let erased = self.erase_label(record, member);
            if let Err(error) = &erased {
                self.engine.log(&format!("array {}: {}", record.name, error.message));
            }
            result = result.and(erased);
        }
        result.map_err(|error| {
            let name = &record.name;
            ControlError::failed(format!("{name} is deleted, but not erased whole: {error}"))
        })
    }

    fn erase_label(&mut self, record: &RegisteredArray, member: &DeviceSpec) -> ControlResult<()> {
        self.look_at(member, 0, "member")?;
        // A device that stands there now may be somebody else's.
        match apart(self).label_of(member) {
            Ok(Some(label)) if label.array == record.uuid => apart(self).erase_label(member),
            Ok(None) => match apart(self).journal_label_of(member) {
                Ok(Some(label)) if label.array == record.uuid => apart(self).erase_label(member),
                _ => {
                    spare_labels::erase_spare(self, member, Some(record.uuid));
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    /// Assembles a recorded array, unless it is to stay at rest. One that cannot be is shown as failed, with
    /// the reason.
    pub(super) fn start_array(&mut self, name: &ArrayName, now: Instant) {
        let Some(record) = self.registry.find_array(name).cloned() else { return };
        if record.stopped {
            let stopped = LiveArray::stopped(name);
            self.live_arrays.insert(record.name, stopped);
        } else {
            late::try_array(self, record, Some(now), now);
        }
    }

    /// Assembles a recorded array of the devices that a survey found.
    pub(super) fn assemble_recorded(&mut self, mut record: RegisteredArray, survey: Survey) {
        let name = record.name.clone();
        let Survey { present, left_out, missing, .. } = survey;
        let arriving = record.spares.clone();
        let mut live = LiveArray { left_out, arriving, ..LiveArray::default() };
        live.absence.missing = missing;
        match apart(self).open_array(&record, &present, false) {
            Ok(opened) => {
                live.size_bytes = Some(opened.size_bytes);
                live.absence.missing.retain(Missing::is_member);
                learn(&mut record, &opened);
                live.left_out.extend(opened.left_out);
            }
            Err(error) => live.error = error.message,
        }
        let before = self.live_arrays.get(&name);
        let is_news =
            before.is_none_or(|it| it.error != live.error || it.left_out != live.left_out);
        let lines = live.left_out.iter().chain(Some(&live.error).filter(|text| !text.is_empty()));
        for line in lines.filter(|_| is_news) {
            self.engine.log(&format!("array {name}: {line}"));
        }
        let is_open = live.size_bytes.is_some();
        let mut spares = std::mem::take(&mut record.spares);
        if is_open {
            spares.retain(|spare| !present.contains(spare));
        }
        if is_open {
            self.engine.configure_array(&name, &record.settings);
            let recorded =
                self.registry.put_array(RegisteredArray { spares: spares.clone(), ..record });
            self.note_array(&name, recorded);
        }
        self.live_arrays.insert(name.clone(), live);
        for spare in spares.into_iter().filter(|_| is_open) {
            self.spare_again(&name, &spare);
        }
        if let Some(live) = self.live_arrays.get_mut(&name) {
            live.arriving.clear();
        }
    }

    /// Brings an array to rest; the volumes on it are closed.
    pub(super) fn bring_array_to_rest(&mut self, name: &ArrayName) {
        self.record_array_events();
        let live = self.live_arrays.remove(name);
        if live.is_some_and(|live| live.size_bytes.is_some()) {
            let closed = apart(self).close_array(name);
            self.note_array(name, closed);
        }
    }

    /// The record of an array.
    pub(super) fn array_record(&self, name: &ArrayName) -> ControlResult<RegisteredArray> {
        self.registry.find_array(name).cloned().ok_or_else(|| {
            let names: Vec<&str> =
                self.registry.arrays().iter().map(|array| array.name.as_str()).collect();
            let hint = if names.is_empty() {
                "there are none yet: voltier array create".to_owned()
            } else {
                suggest::hint(name.as_str(), &names)
            };
            ControlError::failed(format!("no array `{name}`; {hint}"))
        })
    }

    /// The size of an array that is open, in bytes.
    pub(super) fn size_of_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let live = self.live_arrays.get(name);
        live.and_then(|live| live.size_bytes).ok_or_else(|| {
            let why = live.map_or("see daemon.log", |live| live.error.as_str());
            ControlError::failed(format!("the array {name} is not assembled: {why}"))
        })
    }

    pub(super) fn note_array(&mut self, name: &ArrayName, outcome: ControlResult<()>) {
        if let Err(error) = outcome {
            self.engine.warn(&format!("array {name}: {}", error.message));
        }
    }

    /// Everything about one array.
    pub(super) fn array_status(&mut self, record: &RegisteredArray) -> ArrayDetail {
        let mut status = self.array_status_of(record);
        let subject = Subject::Array(record.name.clone());
        status.under_way = self.claims.under_way(&subject, self.own()).unwrap_or_default();
        let is_open = self.size_of_array(&record.name).is_ok();
        if self.claims.starts(&subject, self.own()) && !is_open && !record.stopped {
            status.state = ArrayState::Starting;
        }
        self.add_trouble(&mut status.error);
        status
    }

    fn array_status_of(&mut self, record: &RegisteredArray) -> ArrayDetail {
        let mut status = ArrayDetail::recorded(record);
        status.used_by = self.user_of_array(&record.name, None);
        let pool = record.settings.spare_pool.as_ref();
        let pool = pool.and_then(|pool| self.registry.find_pool(pool));
        let spares = pool.into_iter().flat_map(|pool| &pool.spares);
        status.pool_spares = spares.map(|spare| spare.device.to_string()).collect();
        if record.stopped {
            return status;
        }
        let Some(live) = self.live_arrays.get(&record.name) else { return status };
        status.moved.clone_from(&live.search.moved);
        status.left_out.clone_from(&live.left_out);
        status.error.clone_from(&live.error);
        status.waits_for = live.absence.awaited();
        status.waits_seconds = live.absence.seconds_left();
        if live.absence.is_waiting() {
            status.state = ArrayState::Waiting;
        }
        if live.size_bytes.is_some() {
            status.state = ArrayState::Running;
            self.engine.fill_array_status(&record.name, &mut status);
        }
        status
    }

    /// Whether a device is an array that serves with members missing.
    pub(super) fn is_degraded_array(&mut self, device: &DeviceSpec) -> bool {
        let record = device.array().and_then(|name| self.registry.find_array(name)).cloned();
        record.is_some_and(|record| self.array_status(&record).state == ArrayState::Degraded)
    }

    pub(super) fn array_response(&mut self, name: &ArrayName, notes: Vec<String>) -> Response {
        let record = self.registry.find_array(name).cloned();
        let record = record.expect("an array just handled is recorded");
        Response::Array { array: Box::new(self.array_status(&record)), notes }
    }
}

/// Puts into a record what an opening found.
fn learn(record: &mut RegisteredArray, opened: &OpenedArray) {
    (record.size_bytes, record.events) = (opened.size_bytes, opened.events);
    (record.level, record.integrity) = (opened.level, opened.integrity);
    if opened.journal.is_some() || !opened.is_journal_lost {
        record.journal.clone_from(&opened.journal);
    }
    record.members.truncate(opened.members.len());
    record.record_places(&opened.members);
}

/// Notes on members of which only the smallest one's size is used.
fn unequal(members: &[DeviceSpec], sizes: &[u64]) -> Vec<String> {
    let Some(smallest) = sizes.iter().min() else { return Vec::new() };
    let larger = members.iter().zip(sizes).filter(|(_, size)| *size > smallest);
    larger
        .map(|(member, size)| {
            format!(
                "{member} has {} and is used like the smallest member, as {}",
                exact_size(*size),
                exact_size(*smallest)
            )
        })
        .collect()
}
