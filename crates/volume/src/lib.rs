//! The stack that clients see: closed enum of devices, range checks, overlap order, statistics.
