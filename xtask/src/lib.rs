//! What the tasks of the repository share: the workspace as cargo sees it, and the blocks of its pages.

pub mod fences;
pub mod workspace;

/// Any error that ends a task; printed on one line.
pub type Failure = Box<dyn std::error::Error>;
