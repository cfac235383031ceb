//! Stands for librbd in tests: a cluster is a folder, and misbehaves on command.
//!
//! The configuration of a cluster is a file with the path of its folder. Several processes may use one folder, as hosts
//! use a cluster. In the folder:
//!
//! | file | meaning |
//! | --- | --- |
//! | `POOL/IMAGE`, `POOL/NAMESPACE/IMAGE` | the content of an image; its inode is its id |
//! | `POOL/IMAGE.lock` | the address of the client that has its lock |
//! | `POOL/IMAGE.watch-NUMBER` | the client of this number has it open; stays after a process was killed |
//! | `POOL/IMAGE.features` | the bits of its features, where they are not the usual ones |
//! | `POOL/IMAGE.meta-KEY` | a value of its metadata |
//! | `blocklist-NUMBER` | the cluster refuses this client, for the seconds in the file if it was asked so |
//! | `late` | milliseconds that each request takes |
//! | `hang` | while it is there, no request ends |
//! | `error` | the error number of every change, while it is there |
//! | `connect`, `open`, `acquire` | the error number of this call, while it is there |
//! | `silent` | while it is there, opening an image does not end |
//!
//! | file | content |
//! | --- | --- |
//! | `cluster` | folders and addresses |
//! | `calls` | connections, pools, locks, watchers |
//! | `requests` | requests, carried out by a thread of each image |

mod calls;
mod cluster;
mod requests;
