//! Polls that a panic does not leave.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::domain::{Domain, Failure};

/// A task, as the executor has it.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Characters of a message that are kept: the rest of a dump of two large values tells nobody anything.
const MESSAGE_CHARS_MAX: usize = 300;

thread_local! {
    /// The domain whose task this thread polls.
    static POLLED: Cell<Domain> = const { Cell::new(Domain::NONE) };
    /// The place of the panic that is on its way.
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Whether a panic fails a domain of this thread's executor, and nothing else. For the panic hook of a
/// process: the call notes the place of the panic for the [`Failure`].
pub fn is_contained(panic: &PanicHookInfo<'_>) -> bool {
    let is_contained = POLLED.get() != Domain::NONE;
    if is_contained {
        PLACE.set(panic.location().map(ToString::to_string));
    }
    is_contained
}

/// The executor itself is broken: the panic that follows is not the polled task's.
pub(crate) fn leave() {
    POLLED.set(Domain::NONE);
}

/// The domain whose task this thread polls.
pub(crate) fn polled() -> Domain {
    POLLED.get()
}

/// Polls a task of a domain. The future is dropped when it is over, and left as it is by a panic.
pub(crate) fn poll(
    domain: Domain,
    future: &mut Option<TaskFuture>,
    context: &mut Context<'_>,
) -> Result<Poll<()>, Failure> {
    POLLED.set(domain);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let polled = future.as_mut().map_or(Poll::Ready(()), |it| it.as_mut().poll(context));
        if polled.is_ready() {
            *future = None;
        }
        polled
    }));
    let is_broken = POLLED.replace(Domain::NONE) == Domain::NONE;
    match polled {
        Ok(polled) => Ok(polled),
        Err(payload) if is_broken => resume_unwind(payload),
        Err(payload) => Err(failure_of(payload)),
    }
}

fn failure_of(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let words: Vec<&str> = text.unwrap_or("a panic without words").split_whitespace().collect();
    let message = words.join(" ").chars().take(MESSAGE_CHARS_MAX).collect();
    // A payload may be anything, and its end may panic as well.
    std::mem::forget(payload);
    Failure { message, place: PLACE.take() }
}
