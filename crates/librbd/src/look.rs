//! A look at an image before it is used, with a connection of its own that ends with it.

use std::time::Duration;

use crate::connection::{Connection, Purpose};
use crate::error::ImageError;
use crate::name::ImageName;
use crate::patience::bounded;
use crate::{mark, owner, report};

/// What is seen of an image.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The id that the cluster gave the image when it was made.
    pub id: String,
    /// The mark of who used the image last, if that was not this state folder.
    pub used_by: Option<String>,
    /// The last [report](crate::report()) of an owner.
    pub report: Option<String>,
    /// Its first bytes, and zeroes behind its end.
    pub head: Vec<u8>,
    /// Why it cannot be used now, if somebody else has it.
    pub in_use: Option<ImageError>,
}

/// Looks at an image, and at so many of its first bytes. Each step of it may take `patience`, and all of it three times
/// that.
///
/// # Errors
/// Every [`ImageError`] but those of other users, who are in the answer.
pub fn look(name: &ImageName, head_bytes: usize, patience: Duration) -> Result<Seen, ImageError> {
    let own = name.clone();
    let work = move || look_now(&own, head_bytes, patience);
    bounded(format!("look at {name}"), 3 * patience, work)
}

fn look_now(name: &ImageName, head_bytes: usize, patience: Duration) -> Result<Seen, ImageError> {
    let connection = Connection::open(name, Purpose::Look(patience))?;
    let failed = |number| connection.refused(name, "looking at the image", number);
    let (size_bytes, id) = (connection.size().map_err(failed)?, connection.id().map_err(failed)?);
    let used_by = mark::foreign(&connection, &id).map_err(failed)?;
    let report = report::read(&connection).map_err(failed)?;
    let in_use = match owner::check(&connection, name) {
        // Not somebody else: what this daemon has is in its own records.
        Ok(()) | Err(ImageError::OwnLock) => None,
        Err(error) if error.is_in_use() => Some(error),
        Err(error) => return Err(error),
    };
    let mut head = vec![0; head_bytes];
    let there = usize::try_from(size_bytes).unwrap_or(usize::MAX).min(head_bytes);
    connection.read(0, &mut head[..there]).map_err(failed)?;
    Ok(Seen { size_bytes, id, used_by, report, head, in_use })
}
