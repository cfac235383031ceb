//! The service over an engine that only keeps books: what is recorded, refused, and in which order.

mod arrays;
mod books;
mod exports;
mod faults;
mod figures;
mod fixture;
mod hangs;
mod import;
mod late;
mod moved;
mod newer;
mod pulled;
mod scrubs;
mod silence;
mod spare_pools;
mod stops;
mod volumes;
