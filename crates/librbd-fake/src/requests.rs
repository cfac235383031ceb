//! Requests, carried out one after the other by a thread of each image.
//!
//! UNSAFETY: the vectors of a request are the caller's, who keeps them and what they point to until the completion.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cluster::{Cluster, STEP};

/// A completion.
pub(crate) struct Completion {
    pub(crate) argument: *mut c_void,
    pub(crate) value: isize,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    /// Gives a range up: nothing changes.
    Discard,
    Zeroes,
}

pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) vectors: *const libc::iovec,
    pub(crate) count: usize,
    pub(crate) completion: *mut Completion,
}

// SAFETY: what the pointers lead to is the job's alone until its completion is given back.
unsafe impl Send for Job {}

/// A completion that has ended.
pub(crate) struct Ended(pub(crate) *mut Completion);

// SAFETY: as of a job.
unsafe impl Send for Ended {}

/// What a client of an image hears about its size.
pub(crate) type Watch = (unsafe extern "C" fn(*mut c_void), usize);

/// What the image and its thread have.
pub(crate) struct Shared {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) event: Mutex<c_int>,
    pub(crate) ended: Mutex<Vec<Ended>>,
    pub(crate) watch: Mutex<Option<Watch>>,
}

/// An image that is open.
pub(crate) struct Image {
    pub(crate) shared: Arc<Shared>,
    pub(crate) jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Image {
    pub(crate) fn open(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let (jobs, receiver) = channel();
        let own = shared.clone();
        let thread = thread::Builder::new().spawn(move || own.run(&receiver)).ok();
        Self { shared, jobs: Some(jobs), thread }
    }

    /// Ends when every request has.
    pub(crate) fn close(mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(crate) fn size(&self) -> Option<u64> {
        Some(self.path.metadata().ok()?.len())
    }

    fn run(&self, jobs: &Receiver<Job>) {
        let mut size = self.size();
        loop {
            match jobs.recv_timeout(STEP) {
                Ok(job) => {
                    self.cluster.wait_while("hang");
                    if let Some(late) = self.cluster.command("late") {
                        thread::park_timeout(Duration::from_millis(late));
                    }
                    let value = self.carry_out(&job);
                    // SAFETY: the completion is the job's alone.
                    unsafe { (*job.completion).value = value };
                    held(&self.ended).push(Ended(job.completion));
                    let one = 1_u64.to_ne_bytes();
                    // SAFETY: the descriptor is the caller's, and the bytes are there.
                    unsafe { libc::write(*held(&self.event), one.as_ptr().cast(), one.len()) };
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.size() != size {
                size = self.size();
                let watch = *held(&self.watch);
                if let Some((tell, argument)) = watch {
                    // SAFETY: the caller keeps the argument until it ends the watch.
                    unsafe { tell(argument as *mut c_void) };
                }
            }
        }
    }

    fn carry_out(&self, job: &Job) -> isize {
        let refused = |number: c_int| -(number as isize);
        if self.cluster.is_refused() {
            return refused(libc::ESHUTDOWN);
        }
        let changes = !matches!(job.kind, Kind::Read | Kind::Flush);
        if changes && self.cluster.error("error") < 0 {
            return self.cluster.error("error") as isize;
        }
        let Some(size) = self.size() else { return refused(libc::ENOENT) };
        let vectors = match job.count {
            0 => &[],
            // SAFETY: the caller keeps the vectors until the completion.
            count => unsafe { std::slice::from_raw_parts(job.vectors, count) },
        };
        let given: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        if job.at + job.bytes.max(given as u64) > size {
            return refused(libc::EINVAL);
        }
        let mut at = job.at;
        for vector in vectors {
            let (base, bytes) = (vector.iov_base.cast::<u8>(), vector.iov_len);
            let done = match job.kind {
                // SAFETY: the caller lends the memory for writing until the completion.
                Kind::Read => self
                    .file
                    .read_exact_at(unsafe { std::slice::from_raw_parts_mut(base, bytes) }, at),
                // SAFETY: the caller lends the memory for reading until the completion.
                _ => self.file.write_all_at(unsafe { std::slice::from_raw_parts(base, bytes) }, at),
            };
            if done.is_err() {
                return refused(libc::EIO);
            }
            at += bytes as u64;
        }
        if let Kind::Zeroes = job.kind
            && self.file.write_all_at(&vec![0; job.bytes as usize], job.at).is_err()
        {
            return refused(libc::EIO);
        }
        if let Kind::Read = job.kind { given as isize } else { 0 }
    }
}
