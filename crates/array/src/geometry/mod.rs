//! Where everything is: levels, shapes and the plan of a write. Pure.

pub(crate) mod chunks;
pub(crate) mod level;
pub(crate) mod numbers;
pub(crate) mod plan;
pub(crate) mod shapes;
