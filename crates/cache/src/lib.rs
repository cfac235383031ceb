//! The cache: one log on the SSD in front of a slow origin.
