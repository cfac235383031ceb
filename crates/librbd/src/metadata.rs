//! Texts of ours in the metadata of an image.
//!
//! UNSAFETY: calls of foreign functions, with texts that end with a zero byte and an array of ours with its length.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use crate::connection::{Connection, errno, text};

/// Longest text that is read, in bytes. Ours are shorter.
const BYTES_MAX: usize = 1024;

/// The text under a key, if there is one.
pub(crate) fn get(connection: &Connection, key: &CStr) -> Result<Option<String>, i32> {
    let mut value = [0_u8; BYTES_MAX];
    let mut bytes = value.len();
    // SAFETY: the library writes at most this many bytes there, and the key ends with a zero byte.
    let got = errno(unsafe {
        (connection.api().rbd_metadata_get)(
            connection.image(),
            key.as_ptr(),
            value.as_mut_ptr().cast::<c_char>(),
            &mut bytes,
        )
    });
    match got {
        Err(libc::ENOENT) => return Ok(None),
        Err(number) => return Err(number),
        Ok(_) => {}
    }
    let value = value[..bytes.min(BYTES_MAX)].split(|byte| *byte == 0).next().unwrap_or(&[]);
    Ok(Some(String::from_utf8_lossy(value).into_owned()))
}

/// Puts a text under a key of the image with this id. Not with `rbd_metadata_set`, which tells all who watch the image
/// and waits for their answers: after a daemon was killed the cluster waits for its answer for half a minute.
pub(crate) fn put(connection: &Connection, id: &str, key: &CStr, value: &str) -> Result<(), i32> {
    // The object that has the metadata of an image.
    let header = text(format!("rbd_header.{id}").as_bytes()).map_err(|_| libc::EINVAL)?;
    let input = pairs(&[(key.to_bytes(), value.as_bytes())]);
    // SAFETY: the pool is a handle of the library, the texts end with a zero byte, the library reads so many bytes of
    // the input before the call returns, and has no room to write to.
    errno(unsafe {
        (connection.api().rados_exec)(
            connection.pool(),
            header.as_ptr(),
            c"rbd".as_ptr(),
            c"metadata_set".as_ptr(),
            input.as_ptr().cast::<c_char>(),
            input.len(),
            null_mut(),
            0,
        )
    })
    .map(drop)
}

/// Keys and values as Ceph's encoding has a map of them: their number, and before each text its length, 32 bits little
/// endian.
fn pairs(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut encoded = (pairs.len() as u32).to_le_bytes().to_vec();
    for text in pairs.iter().flat_map(|(key, value)| [key, value]) {
        encoded.extend((text.len() as u32).to_le_bytes());
        encoded.extend(*text);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_encoded_as_the_cluster_reads_them() {
        assert_eq!(pairs(&[(b"k", b"va")]), *b"\x01\0\0\0\x01\0\0\0k\x02\0\0\0va");
    }
}
