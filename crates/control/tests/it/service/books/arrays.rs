//! The arrays of the engine that only keeps books.

use super::*;

impl Arrays for BookEngine {
    fn has_array(&self, name: &ArrayName) -> bool {
        self.books().arrays.contains_key(name)
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        self.call("make", record.name.as_str())?;
        let in_service = |place: usize| LabelledPlace {
            group: 0,
            state: MemberState::InService,
            member: Identity([place as u8; 16]),
        };
        let label = MemberLabel {
            array: record.uuid,
            name: record.name.to_string(),
            level: record.level,
            chunk_bytes: record.chunk_bytes,
            consistency: record.consistency,
            integrity: voltier_array::Integrity::None,
            member: Identity([0; 16]),
            place: 0,
            event: 1,
            redundancy: 1,
            places: (0..record.members.len()).map(in_service).collect(),
            has_journal_device: record.journal.is_some(),
        };
        let mut books = self.books();
        for (place, device) in record.devices().enumerate() {
            let member = Identity([place as u8; 16]);
            let label = MemberLabel { member, place: place as u32, ..label.clone() };
            books.labels.extend(device.path().map(|path| (path.to_owned(), label)));
        }
        let members = record.members.clone();
        let level = Some(record.level);
        let array = BookArray { level, members: members.clone(), ..BookArray::default() };
        books.arrays.insert(record.name.clone(), array);
        Ok(opened(record, members))
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let how = if force { " by force" } else { "" };
        self.call("assemble", &format!("{} of {}{how}", record.name, devices.len()))?;
        for device in devices {
            match self.refuse_newer(device) {
                Err(error) if error.is_unsupported_label(record.uuid) => return Err(error),
                _ => {}
            }
        }
        // A replaced member has no label any more: it is left out.
        let labels = self.books().labels.clone();
        let is_member = |device: &&DeviceSpec| match device.path() {
            _ if record.journal.as_ref() == Some(*device) => false,
            Some(path) => labels.get(path).is_some_and(|label| label.array == record.uuid),
            None => true,
        };
        let devices: Vec<DeviceSpec> = devices.iter().filter(is_member).cloned().collect();
        let label_of = |device: &DeviceSpec| labels.get(device.path()?);
        let labelled = devices.iter().filter_map(label_of).map(|label| label.places.len()).max();
        let count = record.members.len().max(3).max(labelled.unwrap_or(0));
        let missing = count.saturating_sub(devices.len());
        let redundancy = devices.iter().find_map(label_of).map_or(1, |label| label.redundancy);
        if missing > redundancy as usize {
            return Err(ControlError::failed(format!("{missing} members are missing")));
        }
        // Devices go where their labels say; those without one where they were, others where there is room.
        let is_at = |at: usize, it: &DeviceSpec| match label_of(it) {
            Some(label) => label.place as usize == at,
            None => record.members.get(at).and_then(Option::as_ref) == Some(it),
        };
        let event_of = |it: &&DeviceSpec| label_of(it).map(|label| label.event);
        let here = |at| devices.iter().filter(|it| is_at(at, it)).max_by_key(event_of).cloned();
        let mut places: Vec<Option<DeviceSpec>> = (0..count).map(here).collect();
        for device in &devices {
            if label_of(device).is_none() && !places.contains(&Some(device.clone())) {
                *places.iter_mut().find(|place| place.is_none()).unwrap() = Some(device.clone());
            }
        }
        let level = Some(record.level);
        let empty = places.iter().enumerate().filter(|(_, place)| place.is_none());
        let lost = empty.map(|(place, _)| place as u32).collect();
        let array = BookArray { level, members: places.clone(), lost, ..BookArray::default() };
        self.books().arrays.insert(record.name.clone(), array);
        Ok(opened(record, places))
    }

    fn close_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let was_open = self.books().arrays.remove(name).is_some();
        assert!(was_open, "{name} is closed and was not open");
        self.call("stop", name.as_str()).map(|()| 0)
    }

    fn take_array_fault(&self, name: &ArrayName) -> Option<String> {
        let mut books = self.books();
        let why = if books.arrays.contains_key(name) { books.array_fault.take() } else { None };
        if why.is_some() {
            books.arrays.remove(name);
        }
        why
    }

    fn array_head(&self, _: &ArrayName) -> ControlResult<Vec<u8>> {
        Ok(self.books().head.clone())
    }

    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> {
        let books = self.books();
        let array = books.arrays.get(name).filter(|_| !books.are_arrays_late)?;
        let (members, spares) = (array.members.clone(), array.spares.clone());
        Some(ArrayDevices {
            spares_wanted: array.lost.len().saturating_sub(spares.len()),
            spares,
            incoming: array.incoming.clone(),
            events: 1 + books.array_changes,
            ..ArrayDevices::whole(array.level?, ARRAY_BYTES, members)
        })
    }

    fn array_recorded(&self, name: &ArrayName, events: u64) {
        self.books().recorded_events.insert(name.clone(), events);
    }

    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail) {
        if !self.books().arrays[name].lost.is_empty() {
            status.state = ArrayState::Degraded;
        }
    }
}

impl Members for BookEngine {
    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool> {
        self.call("fail", &format!("{name} {place}"))?;
        self.books().arrays.get_mut(name).unwrap().lost.push(place);
        Ok(true)
    }

    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        self.call("replace", &format!("{name} {place}"))?;
        let mut books = self.books();
        let Books { arrays, labels, .. } = &mut *books;
        let array = arrays.get_mut(name).unwrap();
        if !array.lost.contains(&place) {
            array.incoming.push(device.clone());
            return Ok(Replaced::Copy);
        }
        array.lost.retain(|lost| *lost != place);
        let old = array.members[place as usize].replace(device.clone());
        let label = old.and_then(|old| labels.remove(old.path()?));
        labels.extend(device.path().map(Path::to_owned).zip(label));
        Ok(Replaced::Rebuild)
    }

    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        self.call("take back", &format!("{name} {place}"))?;
        let mut books = self.books();
        let is_used = books.used_elsewhere;
        let array = books.arrays.get_mut(name).unwrap();
        if is_used || !array.lost.contains(&place) {
            return Ok(false);
        }
        array.lost.retain(|lost| *lost != place);
        array.members[place as usize] = Some(device.clone());
        Ok(true)
    }

    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        self.call("spare", name.as_str())?;
        let mut books = self.books();
        let Books { arrays, labels, spare_labels, .. } = &mut *books;
        let array = arrays.get_mut(name).unwrap();
        match array.lost.pop() {
            None => array.spares.push(device.clone()),
            Some(place) => {
                spare_labels.remove(&inode_of(device));
                let place = &mut array.members[place as usize];
                let label = place.as_ref().and_then(|old| labels.remove(old.path()?));
                *place = Some(device.clone());
                labels.extend(device.path().map(Path::to_owned).zip(label));
            }
        }
        drop(books);
        self.call("spare is taken by", name.as_str())
    }

    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let books = self.books();
        let is_small = device.path().is_some_and(|path| books.small.iter().any(|it| it == path));
        match is_small {
            false => Ok(()),
            true => Err(ControlError::failed(format!("{device} is too small for {name}"))),
        }
    }

    fn grow_array(
        &self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        self.call("grow", &format!("{name} by {}", devices.len()))?;
        let mut books = self.0.lock().unwrap();
        let array = books.arrays.get_mut(name).unwrap();
        array.members.extend(devices.iter().cloned().map(Some));
        if by != Growth::Capacity {
            array.level = Some("6".parse().unwrap());
        }
        Ok(())
    }

    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let on = device.map_or_else(|| "members".to_owned(), |_| "a device".to_owned());
        self.call("journal", &format!("{name} on {on}"))
    }

    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()> {
        self.call("rebuild", name.as_str())
    }

    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
        self.call("scrub", &format!("{name} {repair:?}"))
    }

    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings) {
        let priority = settings.rebuild.priority.name();
        self.books().calls.push(format!("pace {name} {priority}"));
    }
}

fn opened(record: &RegisteredArray, members: Vec<Option<DeviceSpec>>) -> OpenedArray {
    OpenedArray {
        size_bytes: ARRAY_BYTES,
        level: record.level,
        integrity: record.integrity,
        events: 1,
        members,
        journal: record.journal.clone(),
        is_journal_lost: false,
        left_out: Vec::new(),
    }
}
