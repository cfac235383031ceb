//! `voltier array ...`: ask the daemon, print.

use voltier_control::protocol::{ArrayRequest, NewArray, Request};
use voltier_control::{
    ArrayLevel, ArrayName, ArrayState, ArrayStatus, ControlResult, DeviceSpec, parse_chunk_bytes,
    parse_consistency,
};

use crate::array_args::{
    ArrayVerb, AssembleArray, CreateArray, DeleteArray, FailMember, ShowArrays,
};
use crate::array_table;
use crate::request::device;
use crate::run::{Session, WATCH, print, print_json, print_shown};

/// Does what the verb says.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(verb: &ArrayVerb, session: &Session<'_>) -> ControlResult<()> {
    match verb {
        ArrayVerb::Create(args) => create(args, session),
        ArrayVerb::Show(args) => show(args, session),
        ArrayVerb::Fail(args) => fail(args, session),
        ArrayVerb::Delete(args) => delete(args, session),
        ArrayVerb::Assemble(args) => assemble(args, session),
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
        Some(word) => parse_consistency(word)?,
        None => level.default_consistency(),
    };
    let members = devices(&args.members)?;
    let force = args.force;
    let array = NewArray { name, level, chunk_bytes, consistency, members, force };
    change(session, ArrayRequest::Create { array }, "created")
}

fn assemble(args: &AssembleArray, session: &Session<'_>) -> ControlResult<()> {
    let ask = ArrayRequest::Assemble { devices: devices(&args.members)?, force: args.force };
    change(session, ask, "assembled")
}

fn fail(args: &FailMember, session: &Session<'_>) -> ControlResult<()> {
    let (name, member) = (args.name.parse()?, device(&args.member)?);
    change(session, ArrayRequest::Fail { name, member }, "member taken out of service")
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
    let mut client = session.client()?;
    loop {
        let arrays = client.arrays(name.as_ref())?;
        let body = || match arrays.as_slice() {
            [array] if name.is_some() => array_table::one(array),
            all => array_table::all(all),
        };
        print_shown(&arrays, name.is_some(), args.watch, session.json, body)?;
        if !args.watch {
            return Ok(());
        }
        std::thread::park_timeout(WATCH);
    }
}

/// A change that is done when it is answered.
fn change(session: &Session<'_>, ask: ArrayRequest, done: &str) -> ControlResult<()> {
    let (array, notes) = session.client()?.array(ask)?;
    for note in notes {
        eprintln!("voltier: note: {note}");
    }
    if session.json {
        return print_json(&array);
    }
    print(&format!("{}: {done} ({})\n", array.name, summary(&array)))
}

fn summary(array: &ArrayStatus) -> String {
    let state = match array.state {
        ArrayState::Running => "",
        ArrayState::Degraded => ", degraded",
        ArrayState::Failed => ", failed",
    };
    let size = voltier_control::format_size(array.size_bytes);
    format!("level {}, {} members, {size}{state}", array.level, array.members.len())
}

fn devices(texts: &[String]) -> ControlResult<Vec<DeviceSpec>> {
    texts.iter().map(|text| device(text)).collect()
}
