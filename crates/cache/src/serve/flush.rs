//! Flush: what was acknowledged before it is on a medium when it completes.

use voltier_block::{BlockDevice, IoError, IoResult};

use crate::cache::Inner;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    pub(crate) async fn flush(&self) -> IoResult<()> {
        if self.failed() {
            return self.flush_failed().await;
        }
        if self.make_durable().await.is_err() {
            return self.flush_failed().await;
        }
        self.flush_origin().await?;
        let mut state = self.state.borrow_mut();
        // Whatever made the records durable, to the client this flush is the cut.
        if state.epoch_begin < state.next_sequence {
            state.epoch += 1;
            state.epoch_begin = state.next_sequence;
        }
        Ok(())
    }

    /// Without the SSD: what it acknowledged and had not flushed is lost, and as long as it is, no
    /// flush may say otherwise.
    async fn flush_failed(&self) -> IoResult<()> {
        self.past_gate().await;
        self.flush_origin().await?;
        let lost = self.state.borrow().index.dirty_lines() > 0;
        if self.unflushed_loss.get() && lost { Err(IoError::Medium) } else { Ok(()) }
    }
}
