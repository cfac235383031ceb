//! Workers: tasks that serve one job after the other, as many as are needed at once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use voltier_ring::Handle;

/// What workers do with a job.
#[allow(async_fn_in_trait)]
pub(crate) trait Service: 'static {
    /// A request of a client.
    type Job: 'static;

    /// Serves one job to its end, the answer included.
    async fn serve(&self, job: Self::Job);
}

struct Shared<S: Service> {
    service: S,
    jobs: RefCell<VecDeque<S::Job>>,
    parked: RefCell<Vec<Waker>>,
    closed: Cell<bool>,
}

/// The workers of one client. A worker is made when all others are busy and stays, so that a
/// request costs no allocation.
pub(crate) struct Workers<S: Service> {
    handle: Handle,
    shared: Rc<Shared<S>>,
    count: Cell<usize>,
    count_max: usize,
}

impl<S: Service> Workers<S> {
    /// At most `count_max` workers; further jobs wait their turn.
    pub(crate) fn new(handle: Handle, service: S, count_max: usize) -> Self {
        let shared = Rc::new(Shared {
            service,
            jobs: RefCell::default(),
            parked: RefCell::default(),
            closed: Cell::new(false),
        });
        Self { handle, shared, count: Cell::new(0), count_max }
    }

    /// Hands a job to a worker.
    pub(crate) fn serve(&self, job: S::Job) {
        self.shared.jobs.borrow_mut().push_back(job);
        let parked = self.shared.parked.borrow_mut().pop();
        if let Some(waker) = parked {
            waker.wake();
        } else if self.count.get() < self.count_max {
            self.count.set(self.count.get() + 1);
            drop(self.handle.spawn(self.shared.clone().work()));
        }
    }
}

impl<S: Service> Drop for Workers<S> {
    /// Lets the workers go once there is nothing left to do.
    fn drop(&mut self) {
        self.shared.closed.set(true);
        for waker in self.shared.parked.take() {
            waker.wake();
        }
    }
}

impl<S: Service> Shared<S> {
    async fn work(self: Rc<Self>) {
        while let Some(job) = self.next_job().await {
            self.service.serve(job).await;
        }
    }

    async fn next_job(&self) -> Option<S::Job> {
        // A parked worker has its waker in the list exactly once, or it could be woken for a job
        // while it is busy with another one.
        let mut parked = false;
        poll_fn(|context| {
            if let Some(job) = self.jobs.borrow_mut().pop_front() {
                return Poll::Ready(Some(job));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            let mut list = self.parked.borrow_mut();
            if !parked || !list.iter().any(|waker| waker.will_wake(context.waker())) {
                list.push(context.waker().clone());
                parked = true;
            }
            Poll::Pending
        })
        .await
    }
}
