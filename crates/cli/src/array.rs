//! `voltier array ...`: ask the daemon, print.

use voltier_cli::output::{print, print_json, print_shown};
use voltier_control::protocol::{ArrayRequest, Growth, MemberName, NewArray, Repair, Request};
use voltier_control::{
    ArrayDetail, ArrayLevel, ArrayName, ArraySettings, ArrayState, Client, ControlError,
    ControlResult, DeviceSpec, JOURNAL_KEY, parse_chunk_bytes, parse_word, recorded_arrays,
};

use crate::array_args::{
    AddSpare, ArrayVerb, AssembleArray, CreateArray, DeleteArray, FailMember, Follow, GrowArray,
    PoolAdd, PoolRemove, PoolShow, PoolVerb, RemoveSpare, ReplaceMember, Scrub, SetArray,
    ShowArrays, StartArray,
};
use crate::array_table;
use crate::export_args;
use crate::progress::{self, Task};
use crate::rates_table;
use crate::request::{device, key_values};
use crate::session::{Session, WATCH, WATCH_S};
use crate::volumes::refuse_suffering;

/// Does what the verb says.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(verb: &ArrayVerb, session: &Session<'_>) -> ControlResult<()> {
    match verb {
        ArrayVerb::Create(args) => create(args, session),
        ArrayVerb::Show(args) => show(args, session),
        ArrayVerb::Fail(args) => fail(args, session),
        ArrayVerb::Replace(args) => replace(args, session),
        ArrayVerb::AddSpare(args) => add_spare(args, session),
        ArrayVerb::RemoveSpare(args) => remove_spare(args, session),
        ArrayVerb::Grow(args) => grow(args, session),
        ArrayVerb::Rebuild(args) => rebuild(args, session),
        ArrayVerb::Scrub(args) => scrub(args, session),
        ArrayVerb::Set(args) => set(args, session),
        ArrayVerb::SparePool(args) => spare_pool(&args.verb, session),
        ArrayVerb::Delete(args) => delete(args, session),
        ArrayVerb::Assemble(args) => assemble(args, session),
        ArrayVerb::Start(args) => start(args, session),
        ArrayVerb::Stop(args) => stop(args, session),
    }
}

fn create(args: &CreateArray, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let level = ArrayLevel::of_word(&args.level, args.group, args.members.len())?;
    let chunk_bytes = match &args.chunk {
        Some(text) => parse_chunk_bytes(text)?,
        None => level.default_chunk_bytes(),
    };
    level.check(args.members.len(), chunk_bytes)?;
    let consistency = match &args.consistency {
        Some(word) => parse_word(word)?,
        None => level.default_consistency(),
    };
    let integrity = args.integrity.as_deref().map(parse_word).transpose()?.unwrap_or_default();
    let (members, spares) = (devices(&args.members)?, devices(&args.spare)?);
    let journal = args.journal.as_deref().map(device).transpose()?;
    let force = args.force;
    let array = NewArray { name, level, chunk_bytes, consistency, members, spares, journal, force };
    let volume = array.name.of_its_volume();
    let export = export_args::of_new(args.export.kind.as_deref(), session.state, &volume)?;
    let uri = export.as_ref().map(|export| export.uri(&volume));
    let ask = ArrayRequest::Create { array, integrity, export };
    change_and_tell(session, ask, "created", uri.as_deref())
}

fn assemble(args: &AssembleArray, session: &Session<'_>) -> ControlResult<()> {
    let (devices, force, read_only) = (devices(&args.members)?, args.force, args.read_only);
    let ask = ArrayRequest::Assemble { devices, force, read_only };
    change(session, ask, "assembled")
}

fn start(args: &StartArray, session: &Session<'_>) -> ControlResult<()> {
    change(session, ArrayRequest::Start { name: args.name.parse()? }, "started")
}

fn stop(args: &StartArray, session: &Session<'_>) -> ControlResult<()> {
    change(session, ArrayRequest::Stop { name: args.name.parse()? }, "stopped")
}

fn fail(args: &FailMember, session: &Session<'_>) -> ControlResult<()> {
    let (name, member) = (args.name.parse()?, member(&args.member)?);
    change(session, ArrayRequest::Fail { name, member }, "member taken out of service")
}

fn replace(args: &ReplaceMember, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let (old, new, force) = (member(&args.old)?, device(&args.new)?, args.force);
    let mut client = session.client()?;
    let ask = ArrayRequest::Replace { name: name.clone(), old, new, force };
    let (array, notes) = client.array(ask)?;
    for note in &notes {
        eprintln!("voltier: {note}");
    }
    finish(session, &mut client, array, Task::Rebuild, args.no_wait)
}

fn add_spare(args: &AddSpare, session: &Session<'_>) -> ControlResult<()> {
    let (name, spare) = (args.name.parse()?, device(&args.spare)?);
    change(session, ArrayRequest::AddSpare { name, spare, force: args.force }, "spare added")
}

fn remove_spare(args: &RemoveSpare, session: &Session<'_>) -> ControlResult<()> {
    let (name, spare) = (args.name.parse()?, device(&args.spare)?);
    change(session, ArrayRequest::RemoveSpare { name, spare }, "spare removed")
}

fn grow(args: &GrowArray, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let (by, devices) = match &args.member {
        Some(member) if args.capacity => (Growth::Capacity, vec![device(member)?]),
        Some(member) => (Growth::Member, vec![device(member)?]),
        None => (Growth::Parity, devices(&args.parity)?),
    };
    let mut client = session.client()?;
    let ask = ArrayRequest::Grow { name, by, devices, force: args.force };
    let (array, notes) = client.array(ask)?;
    for note in &notes {
        eprintln!("voltier: {note}");
    }
    let task = if args.capacity { Task::Reshape } else { Task::Grow };
    finish(session, &mut client, array, task, args.no_wait)
}

fn rebuild(args: &Follow, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let mut client = session.client()?;
    let known = client.arrays(Some(&name))?;
    let running = known.into_iter().next().filter(|array| array.rebuild.running);
    let array = match running {
        Some(array) => array,
        None => client.array(ArrayRequest::Rebuild { name })?.0,
    };
    finish(session, &mut client, array, Task::Rebuild, args.no_wait)
}

fn scrub(args: &Scrub, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.follow.name.parse()?;
    let repair = match args {
        Scrub { check: true, .. } => Repair::Nothing,
        Scrub { all: true, .. } => Repair::Everything,
        Scrub { rewrite_data: true, .. } => Repair::RewriteData,
        Scrub { .. } => Repair::Located,
    };
    let mut client = session.client()?;
    let (array, _) = client.array(ArrayRequest::Scrub { name, repair })?;
    finish(session, &mut client, array, Task::Scrub, args.follow.no_wait)
}

fn set(args: &SetArray, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let mut tried = ArraySettings::default();
    let changes = key_values(&args.changes, "rebuild_priority=low")?;
    let (moves, changes): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|(key, _)| key == JOURNAL_KEY);
    for (key, value) in &changes {
        tried.apply(key, value)?;
    }
    let journals: Vec<Option<DeviceSpec>> =
        moves.iter().map(|(_, value)| journal_of(value)).collect::<ControlResult<_>>()?;
    let force = args.force;
    if force && journals.is_empty() {
        return Err(ControlError::usage("-f goes with journal=DEV"));
    }
    let set = ArrayRequest::Set { name: name.clone(), changes: changes.clone() };
    let done = format!("set {}", args.changes.join(" "));
    let Some(journal) = journals.into_iter().next() else {
        return change(session, set, &done);
    };
    if !changes.is_empty() {
        session.client()?.array(set)?;
    }
    change(session, ArrayRequest::SetJournal { name, journal, force }, &done)
}

/// Where a journal is to be: on a device, or on the members.
fn journal_of(value: &str) -> ControlResult<Option<DeviceSpec>> {
    if value == "members" { Ok(None) } else { device(value).map(Some) }
}

fn spare_pool(verb: &PoolVerb, session: &Session<'_>) -> ControlResult<()> {
    let ask = match verb {
        PoolVerb::Add(PoolAdd { pool, devices: given, force }) => {
            let (pool, devices) = (pool.parse()?, devices(given)?);
            ArrayRequest::PoolAdd { pool, devices, force: *force }
        }
        PoolVerb::Remove(PoolRemove { pool, devices: given }) => {
            ArrayRequest::PoolRemove { pool: pool.parse()?, devices: devices(given)? }
        }
        PoolVerb::Show(PoolShow { pool }) => {
            let pool = pool.as_ref().map(|pool| pool.parse()).transpose()?;
            ArrayRequest::PoolShow { pool }
        }
    };
    let is_show = matches!(verb, PoolVerb::Show(_));
    let mut client = match session.running_client()? {
        Some(client) => client,
        None if is_show => return Err(session.no_daemon()),
        None => session.client()?,
    };
    let (pools, notes) = client.pools(ask)?;
    for note in notes {
        eprintln!("voltier: note: {note}");
    }
    if session.json {
        return print_json(&pools);
    }
    match pools.is_empty() {
        true if is_show => print("no spare pools; make one with `voltier array spare-pool add`\n"),
        true => print("spare pool forgotten\n"),
        false => print(&array_table::pools(&pools)),
    }
}

/// Waits for the end of a background task, unless told not to, and says how it went.
fn finish(
    session: &Session<'_>,
    client: &mut Client,
    array: ArrayDetail,
    task: Task,
    no_wait: bool,
) -> ControlResult<()> {
    let array = if no_wait { array } else { progress::follow_array(client, array, task)? };
    if session.json {
        return print_json(&array);
    }
    let name = &array.name;
    print(&match task {
        _ if no_wait => format!(
            "{name}: {} is running; `voltier array show {name}` says how far\n",
            task.verb()
        ),
        Task::Rebuild => format!("{name}: rebuilt ({})\n", summary(&array)),
        Task::Grow => format!("{name}: grown ({})\n", summary(&array)),
        Task::Reshape => {
            let volume = array.used_by.as_ref().map_or_else(String::new, |volume| {
                format!("; volume {volume} has the new size after `voltier stop {volume}`, `voltier start {volume}`")
            });
            format!("{name}: grown ({}){volume}\n", summary(&array))
        }
        Task::Scrub => {
            format!("{name}: scrubbed ({})\n", array_table::scrub_found(&array.scrub_found))
        }
    })
}

/// A member by its number, or by its device.
fn member(text: &str) -> ControlResult<MemberName> {
    match text.parse() {
        Ok(index) => Ok(MemberName::Index(index)),
        Err(_) => device(text).map(MemberName::Device),
    }
}

fn delete(args: &DeleteArray, session: &Session<'_>) -> ControlResult<()> {
    let name: ArrayName = args.name.parse()?;
    let ask = ArrayRequest::Delete { name: name.clone(), erase: args.erase };
    session.client()?.request(&Request::Array { ask })?;
    if session.json {
        return print_json(&serde_json::json!({
            "name": name, "deleted": true, "erased": args.erase
        }));
    }
    let what_is_left = if args.erase {
        "its members are plain devices now"
    } else {
        "its members keep their data; `voltier array assemble DEV...` brings it back"
    };
    print(&format!("{name}: deleted ({what_is_left})\n"))
}

fn show(args: &ShowArrays, session: &Session<'_>) -> ControlResult<()> {
    let name: Option<ArrayName> = args.name.as_ref().map(|text| text.parse()).transpose()?;
    let Some(mut client) = session.running_client()? else {
        return show_recorded(session, name.as_ref());
    };
    loop {
        let arrays = client.arrays_over(name.as_ref(), args.watch.then_some(WATCH_S))?;
        print_arrays(session, &arrays, name.is_some(), args.watch)?;
        if !args.watch {
            return none_suffers(&arrays);
        }
        std::thread::park_timeout(WATCH);
    }
}

fn print_arrays(
    session: &Session<'_>,
    arrays: &[ArrayDetail],
    one: bool,
    watch: bool,
) -> ControlResult<()> {
    let body = || {
        let rates = if watch { rates_table::of_arrays(arrays) } else { String::new() };
        match arrays {
            [array] if one => array_table::one(array) + &rates,
            all => array_table::all(all) + &rates,
        }
    };
    print_shown(arrays, one, watch, session.json, body)
}

/// Shows what is on record, and says that no daemon runs.
fn show_recorded(session: &Session<'_>, name: Option<&ArrayName>) -> ControlResult<()> {
    let mut arrays = recorded_arrays(session.state)?;
    arrays.retain(|array| name.is_none_or(|name| array.name == *name));
    if !arrays.is_empty() {
        print_arrays(session, &arrays, name.is_some(), false)?;
    }
    Err(session.no_daemon())
}

/// Whether all that was shown does its work, with everything that protects it: programs ask for it by the exit code.
fn none_suffers(arrays: &[ArrayDetail]) -> ControlResult<()> {
    refuse_suffering(arrays.iter().map(|it| (format!("the array {}", it.name), &it.health)))
}

/// A change that is done when it is answered.
fn change(session: &Session<'_>, ask: ArrayRequest, done: &str) -> ControlResult<()> {
    change_and_tell(session, ask, done, None)
}

/// [`change`] that ends with the address of a new export.
fn change_and_tell(
    session: &Session<'_>,
    ask: ArrayRequest,
    done: &str,
    uri: Option<&str>,
) -> ControlResult<()> {
    let (array, notes) = session.client()?.array(ask)?;
    for note in notes {
        eprintln!("voltier: note: {note}");
    }
    if session.json {
        return print_json(&array);
    }
    let at = uri.map(|uri| format!(": {uri}")).unwrap_or_default();
    print(&format!("{}: {done} ({}){at}\n", array.name, summary(&array)))
}

fn summary(array: &ArrayDetail) -> String {
    let state = match array.state {
        ArrayState::Running => "",
        ArrayState::Degraded => ", degraded",
        ArrayState::Waiting => ", waiting",
        ArrayState::Failed => ", failed",
        ArrayState::Starting => ", starting",
        ArrayState::Stopped => ", stopped",
        ArrayState::NotRunning => ", not running",
    };
    let size = voltier_control::format_size(array.size_bytes);
    format!("level {}, {} members, {size}{state}", array.level, array.members.len())
}

fn devices(texts: &[String]) -> ControlResult<Vec<DeviceSpec>> {
    texts.iter().map(|text| device(text)).collect()
}
