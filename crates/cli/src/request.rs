//! From arguments to requests: every value is checked here, before a daemon hears of it.

use voltier_control::protocol::{NewCache, Request};
use voltier_control::{
    ControlError, ControlResult, DeviceSpec, ExportAccess, ORIGIN_KEY, SSD_KEY, Settings, StateDir,
    VolumeName, parse_line_bytes, parse_word,
};

use crate::args::{Attach, CacheChoices, Create, OpenExport, Set, Takeover, Unexport};
use crate::export_args;

pub(crate) fn create(args: &Create, state: &StateDir) -> ControlResult<Request> {
    let name: VolumeName = args.name.text().parse()?;
    if let Some(error) = without_options(&name, args) {
        return Err(error);
    }
    // EnhanceIO calls the slow side -d and the policy -p; MaxIO calls the slow side -p.
    let (hdd, policy) = match (&args.source, &args.hdd) {
        (Some(source), policy) => (source, policy.as_deref()),
        (None, Some(hdd)) => (hdd, None),
        (None, None) => return Err(ControlError::usage("no backing disk given; add -p DISK")),
    };
    let mut settings = settings(&args.choices)?;
    if let Some(word) = policy {
        if args.choices.policy.is_some() {
            return Err(ControlError::usage(
                "the policy is given twice; with -d, -p is the policy",
            ));
        }
        settings.policy = parse_word(word).map_err(|error| {
            ControlError::usage(format!("{error}; with -d, -p is the policy (EnhanceIO)"))
        })?;
    }
    let origin = device(hdd)?;
    let cache = cache_of(args.ssd.as_ref(), settings, args.choices.force)?;
    let export = export_args::of_new(args.export.kind.as_deref(), state, &name)?;
    Ok(Request::Create { name, origin, cache, export })
}

/// The refusal of `create NAME DISK SSD`: an SSD is overwritten, so nobody guesses which of them it is.
fn without_options(name: &VolumeName, args: &Create) -> Option<ControlError> {
    let given = args.source.as_ref().or(args.hdd.as_ref());
    let mut plain = args.plain.iter();
    let disk = given.or_else(|| plain.next())?;
    let ssd = args.ssd.as_ref().or_else(|| plain.next());
    let ssd = ssd.map(|ssd| format!(" -s {ssd}")).unwrap_or_default();
    (!args.plain.is_empty()).then(|| {
        ControlError::usage(format!(
            "the disk and the SSD are named by options: `voltier create {name} -p {disk}{ssd}`"
        ))
    })
}

pub(crate) fn take_over(args: &Takeover, state: &StateDir) -> ControlResult<Request> {
    let name: VolumeName = args.name.parse()?;
    let origin = args.hdd.as_deref().map(device).transpose()?;
    let cache = cache_of(args.ssd.as_ref(), settings(&args.choices)?, args.choices.force)?;
    let export = match origin {
        Some(_) => export_args::of_new(args.export.kind.as_deref(), state, &name)?,
        // One that is on record has its exports.
        None => None,
    };
    Ok(Request::TakeOver { name, origin, cache, export, force: args.choices.force })
}

pub(crate) fn attach(args: &Attach) -> ControlResult<Request> {
    let name = args.name.text().parse()?;
    let settings = settings(&args.choices)?;
    let cache = NewCache { device: device(&args.ssd)?, settings, force: args.choices.force };
    Ok(Request::Attach { name, cache })
}

pub(crate) fn set(args: &Set) -> ControlResult<Request> {
    let name = args.name.parse()?;
    let mut tried = Settings::default();
    let mut changes = key_values(&args.changes, "mode=wb")?;
    if let [(key, device)] = &mut changes[..]
        && [ORIGIN_KEY, SSD_KEY].contains(&key.as_str())
    {
        *device = device.parse::<DeviceSpec>()?.absolute()?.to_string();
        return Ok(Request::Set { name, changes });
    }
    for (key, value) in &changes {
        tried.apply(key, value)?;
    }
    Ok(Request::Set { name, changes })
}

/// Texts `KEY=VALUE`, taken apart.
pub(crate) fn key_values(texts: &[String], example: &str) -> ControlResult<Vec<(String, String)>> {
    let pair = |text: &String| {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            ControlError::usage(format!("`{text}` is not KEY=VALUE; write for example {example}"))
        })?;
        Ok((key.to_owned(), value.to_owned()))
    };
    let pairs: Vec<(String, String)> = texts.iter().map(pair).collect::<ControlResult<_>>()?;
    for (at, (key, _)) in pairs.iter().enumerate() {
        if pairs[..at].iter().any(|(before, _)| before == key) {
            return Err(ControlError::usage(format!("{key} is given twice; give it once")));
        }
    }
    Ok(pairs)
}

pub(crate) fn export(args: &OpenExport, state: &StateDir) -> ControlResult<Request> {
    let name: VolumeName = args.export.name.text().parse()?;
    let (mode, owner, group) = (args.mode.as_deref(), args.owner.as_deref(), args.group.as_deref());
    let access = ExportAccess::parse(mode, owner, group)?;
    match args.export.at.spec(state, &name)? {
        Some(export) => Ok(Request::Export { name, export, insecure: args.insecure, access }),
        None => Err(ControlError::usage(format!(
            "no export given; write {} after the name",
            export_args::usage()
        ))),
    }
}

pub(crate) fn unexport(args: &Unexport, state: &StateDir) -> ControlResult<Request> {
    let name: VolumeName = args.export.name.text().parse()?;
    let export = args.export.at.spec(state, &name)?;
    Ok(Request::Unexport { name, export, now: args.now })
}

/// A device by the name that the command line gives it.
pub(crate) fn device(text: &str) -> ControlResult<DeviceSpec> {
    text.parse::<DeviceSpec>()?.absolute()
}

fn settings(choices: &CacheChoices) -> ControlResult<Settings> {
    let mut settings = Settings::default();
    if let Some(policy) = &choices.policy {
        settings.policy = parse_word(policy)?;
    }
    if let Some(mode) = &choices.mode {
        settings.mode = parse_word(mode)?;
    }
    if let Some(size) = &choices.block_size {
        settings.line_bytes = parse_line_bytes(size)?;
    }
    settings.ephemeral_ssd = choices.ephemeral_ssd;
    for (key, value) in key_values(&choices.more, "--set ordered=on")? {
        settings.apply(&key, &value)?;
    }
    settings.check()?;
    Ok(settings)
}

/// The cache of a new volume, if it gets one.
fn cache_of(
    ssd: Option<&String>,
    settings: Settings,
    force: bool,
) -> ControlResult<Option<NewCache>> {
    match ssd {
        Some(ssd) => Ok(Some(NewCache { device: device(ssd)?, settings, force })),
        None if settings != Settings::default() => Err(ControlError::usage(
            "a volume without an SSD has no policy, mode, block size, --set or --ephemeral-ssd; add -s SSD",
        )),
        None => Ok(None),
    }
}
