//! Whether members keep checksums of their blocks.

voltier_block::words! {
    /// The checksums that the members of an array keep of their blocks.
    #[derive(Default, PartialOrd, Ord)]
    pub enum Integrity, "no integrity" {
        /// None: a block that a member returns is believed.
        #[default]
        None = "none",
        /// The CRC-32C of each 4 KiB of a member's data area, parity included.
        Crc32c = "crc32c",
    }
}
