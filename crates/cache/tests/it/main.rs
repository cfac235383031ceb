//! The integration tests of the cache. One program: what is generic over devices
//! is compiled once for all of them.

mod congestion;
mod destage;
mod destage_rate;
mod dirty_age;
mod evacuation;
mod failed_flush;
mod flush;
mod label_places;
mod load;
mod long_streams;
mod oracle;
mod ordered;
mod owner;
mod parts_of_lines;
mod policy_hit_ratio;
mod policy_orders;
mod same_range;
mod settings_during_checkpoint;
mod silent;
mod unshipped;
mod zeroes;
