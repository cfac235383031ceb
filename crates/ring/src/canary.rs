//! The switch by which a crate's deliberate bugs are chosen.

/// Makes the switch of an enum of deliberate bugs, in the module of that enum. The function `is` tells
/// whether one is chosen on this thread, `choose` chooses.
///
/// Both exist only with the feature `canaries` of the crate that calls this, which nothing but the
/// proof of the simulator turns on. Without the feature `is` is a constant `false`, and the compiler
/// removes every trace.
#[macro_export]
macro_rules! canary_switch {
    ($canary:ident) => {
        #[cfg(feature = "canaries")]
        mod chosen {
            use std::cell::Cell;

            use super::$canary;

            thread_local! {
                static CHOSEN: Cell<Option<$canary>> = const { Cell::new(None) };
            }

            /// Has this crate behave with this bug on this thread from now on, or with none.
            pub fn choose(canary: Option<$canary>) {
                CHOSEN.set(canary);
            }

            pub(crate) fn is(canary: $canary) -> bool {
                CHOSEN.get() == Some(canary)
            }
        }

        #[cfg(feature = "canaries")]
        pub use chosen::choose;
        #[cfg(feature = "canaries")]
        pub(crate) use chosen::is;

        #[cfg(not(feature = "canaries"))]
        pub(crate) const fn is(_: $canary) -> bool {
            false
        }
    };
}
