//! The content of the media, byte by byte. Pure.

pub(crate) mod bits;
pub(crate) mod checksum;
pub(crate) mod checksum_page;
pub(crate) mod consistency;
pub(crate) mod integrity;
pub(crate) mod journal_label;
pub(crate) mod journal_place;
pub(crate) mod journal_record;
pub(crate) mod member_layout;
pub(crate) mod region_map;
pub(crate) mod reshape_record;
pub(crate) mod spare_label;
pub(crate) mod superblock;
pub(crate) mod void_pages;
