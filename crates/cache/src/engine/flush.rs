//! Flush: what was acknowledged before it is on a medium when it completes.

use voltier_block::{BlockDevice, IoError, IoResult};

use crate::cache::Inner;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    pub(crate) async fn flush(&self) -> IoResult<()> {
        if self.failed() {
            return self.flush_failed().await;
        }
        let wrote = {
            let state = self.state.borrow();
            state.durable_sequence < state.acked_sequence
        };
        match self.make_durable().await {
            Ok(()) => {}
            // Acknowledged writes may be lost with the SSD: this flush must not say otherwise.
            Err(_) if self.state.borrow().index.dirty_lines() > 0 => return Err(IoError::Medium),
            Err(_) => return self.flush_failed().await,
        }
        self.flush_origin().await?;
        if wrote {
            self.state.borrow_mut().epoch += 1;
        }
        Ok(())
    }

    async fn flush_failed(&self) -> IoResult<()> {
        self.past_gate().await;
        self.flush_origin().await
    }
}
