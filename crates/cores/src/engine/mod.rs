//! What the control plane asks of the cores: a file for each trait of its `engine`.

mod arrays;
mod caches;
mod drives;
mod exports;
mod labels;
mod log;
mod members;
mod volumes;
