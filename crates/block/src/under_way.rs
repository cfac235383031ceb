//! Requests that a drive has, counted beyond the life of the handle they were made through.

use std::fmt;
use std::rc::Rc;

/// A count of the requests that a drive was given and has not ended.
#[derive(Clone, Default)]
pub struct UnderWay(Option<Rc<dyn Fn() -> usize>>);

impl UnderWay {
    /// The count that a drive keeps.
    pub fn of(count: impl Fn() -> usize + 'static) -> Self {
        Self(Some(Rc::new(count)))
    }

    /// How many there are now.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |count| count())
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} under way", self.count())
    }
}
