//! Looks at drives beyond this machine.

use std::time::Duration;

use voltier_block::SECTOR_BYTES;
use voltier_librbd::{ImageError, ImageName};
use voltier_nbd::{ConnectError, Connected, ExportUri, connect, proto};

use super::drive_identity::DriveIdentity;
use super::finding::Finding;
use super::protection::WriteProtection;
use crate::error::{ControlError, ControlResult};
use crate::image_report::{ImageReport, ImageUse};
use crate::remote::Remote;

/// How long a server may take to answer, from the first packet to the last.
pub const REMOTE_PATIENCE: Duration = Duration::from_secs(5);

/// What is seen of a drive.
pub(super) struct Seen {
    pub(super) size_bytes: u64,
    pub(super) identity: DriveIdentity,
    /// What stands against writing to it, but for its content.
    pub(super) findings: Vec<Finding>,
    /// What another host reported that used it last.
    pub(super) report: Option<ImageReport>,
    /// Its first bytes, and zeroes behind its end.
    pub(super) head: Vec<u8>,
}

/// An image that was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenImage {
    /// The clients that were pushed off.
    pub from: Vec<String>,
    /// What the last owner reported, if it was a Voltier.
    pub report: Option<ImageReport>,
}

/// Looks at a drive beyond this machine, and at so many of its first bytes.
///
/// # Errors
/// As [`super::examine_remote`].
pub(super) fn see(remote: &Remote, head_bytes: usize) -> ControlResult<Seen> {
    match remote {
        Remote::Nbd(uri) => see_export(uri, head_bytes),
        Remote::Rbd(name) => see_image(name, head_bytes),
    }
}

fn see_image(name: &ImageName, head_bytes: usize) -> ControlResult<Seen> {
    let seen = voltier_librbd::look(name, head_bytes, REMOTE_PATIENCE)
        .map_err(|error| ControlError::failed(format!("{name}: {error}")))?;
    let report = seen.report.filter(|_| seen.used_by.is_some());
    Ok(Seen {
        size_bytes: seen.size_bytes,
        report: report.and_then(|report| ImageReport::read(&report)),
        identity: DriveIdentity::of_image(
            &name.place(),
            (&seen.id, seen.used_by.as_deref()),
            seen.size_bytes,
        ),
        findings: seen.in_use.map(|by| Finding::InUse(by.to_string())).into_iter().collect(),
        head: seen.head,
    })
}

fn see_export(uri: &ExportUri, head_bytes: usize) -> ControlResult<Seen> {
    let failed = |error: ConnectError| ControlError::failed(format!("{uri}: {error}"));
    let connected = connect(uri, 1, REMOTE_PATIENCE).map_err(failed)?;
    let (size_bytes, is_read_only) =
        (connected.facts.bytes, connected.facts.has(proto::FLAG_READ_ONLY));
    if size_bytes < SECTOR_BYTES {
        return Err(ControlError::failed(format!(
            "{uri} has {size_bytes} bytes, less than one sector; make it larger first"
        )));
    }
    let head = head_of(uri, &connected, head_bytes).map_err(failed)?;
    connected.leave();
    let protection = is_read_only.then_some(WriteProtection::Server);
    Ok(Seen {
        size_bytes,
        identity: DriveIdentity::of_export(&uri.export, size_bytes),
        report: None,
        findings: protection.map(Finding::WriteProtected).into_iter().collect(),
        head,
    })
}

/// The first bytes of an export, and zeroes behind its end.
fn head_of(
    uri: &ExportUri,
    connected: &Connected,
    head_bytes: usize,
) -> Result<Vec<u8>, ConnectError> {
    let block = connected.facts.minimum_bytes as usize;
    let there = usize::try_from(connected.facts.bytes).unwrap_or(usize::MAX).min(head_bytes);
    let there = there - there % block;
    let most = connected.facts.maximum_bytes as usize / block * block;
    let mut head = Vec::with_capacity(head_bytes);
    while head.len() < there {
        let bytes = most.min(there - head.len());
        head.extend(connected.read(uri, head.len() as u64, bytes, REMOTE_PATIENCE)?);
    }
    head.resize(head_bytes, 0);
    Ok(head)
}

/// Takes an image away from whoever has it. What it lacked counts as given up then.
///
/// # Errors
/// When it is no image, its owner is alive and `force` does not say otherwise, or the cluster does not do it.
pub fn take_image_over(remote: &Remote, force: bool) -> ControlResult<TakenImage> {
    let Remote::Rbd(name) = remote else {
        return Err(ControlError::usage(format!(
            "{remote} cannot be taken over: who else uses it, and what is lost, only a Ceph RBD image says \
             (rbd:POOL/IMAGE)"
        )));
    };
    let given_up = move |report: &str| {
        let Some(report) = ImageReport::read(report) else { return Ok(None) };
        // A host that has stopped in order since it was looked at has lost nothing yet.
        match report.better_way().filter(|_| !force && report.state == ImageUse::Stopped) {
            Some(why) => Err(format!("{why}; or give that up with --force")),
            None => Ok(Some(ImageReport { state: ImageUse::GivenUp, ..report }.text())),
        }
    };
    let taken = voltier_librbd::take_over(name, force, REMOTE_PATIENCE, given_up);
    let taken = taken.map_err(|error| {
        let way = match error {
            ImageError::Alive(_) => {
                "; stop or move the volume there, and nothing is lost, or take the image from it with --force"
            }
            _ => "",
        };
        ControlError::failed(format!("{name}: {error}{way}"))
    })?;
    let report = taken.report.as_deref().and_then(ImageReport::read);
    Ok(TakenImage { from: taken.from, report })
}
