//! The ways to keep data and parity of a stripe together over a power cut.

voltier_block::words! {
    /// The ways to keep data and parity of a stripe together over a power cut. A place in the list is the code in
    /// superblocks: a new one goes to the end.
    #[derive(Default)]
    pub enum Consistency, "not a consistency" {
        /// Every write is in a journal before it is in its place: nothing ever needs a resync, also while
        /// members are lost. Levels without parity need none and have none.
        #[default]
        Journal = "journal",
        /// The regions that are being written are dirty: after a power cut their parity is made anew.
        /// A member lost before that may take data along that nobody was writing.
        Bitmap = "bitmap",
        /// Nothing is noted: after a power cut the parity of everything is made anew.
        None = "none",
    }
}
