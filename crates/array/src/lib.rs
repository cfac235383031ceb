//! Arrays: drives that protect each other, as one block device.

mod geometry;
mod level;

pub use geometry::{Geometry, MemberPlace, Part, Place, Span, Stripe};
pub use level::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GeometryError, Layout, Level};
