//! Tasks of an array beside requests.

pub(crate) mod background;
pub(crate) mod pace;
pub(crate) mod rebuild;
pub(crate) mod replace;
pub(crate) mod reshape;
pub(crate) mod resync;
pub(crate) mod scrub;
pub(crate) mod vouching;

use std::rc::Rc;

use voltier_block::DriveControl;

use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::replace::ReplaceError;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::mend::Mender;
use crate::stripe::stripe_writer::StripeWriter;
use crate::stripe::stripes::Stripes;
use crate::tasks::background::{BackgroundTask, Closing, Runner};
use crate::tasks::pace::Pace;
use crate::tasks::rebuild::{Rebuild, RebuildStatus, RebuildTask};
use crate::tasks::replace::{Replacements, Spares};
use crate::tasks::reshape::worker::{Beside, Reshape};
use crate::tasks::reshape::{Moving, ReshapeStatus};
use crate::tasks::resync::Resync;
use crate::tasks::scrub::{Scrub, ScrubRepair, ScrubStatus, ScrubTask};
use crate::tasks::vouching::Vouching;

/// Paces and spares, for the tasks of an array that takes over.
pub(crate) struct Inheritance<D> {
    rebuild_pace: Pace,
    scrub_pace: Pace,
    spares: Spares<D>,
}

impl<D> Default for Inheritance<D> {
    fn default() -> Self {
        let (rebuild_pace, scrub_pace) = (Pace::default(), Pace::default());
        Self { rebuild_pace, scrub_pace, spares: Spares::default() }
    }
}

/// The tasks of an array.
pub(crate) struct Tasks<D> {
    pub(crate) rebuild: Rc<RebuildTask<D>>,
    pub(crate) scrub: Rc<ScrubTask<D>>,
    pub(crate) resync: Rc<Resync<D>>,
    pub(crate) vouching: Rc<Vouching<D>>,
    pub(crate) replacements: Rc<Replacements<D>>,
    /// Set while stripes have two shapes.
    pub(crate) reshape: Option<Rc<Reshape<D>>>,
    closing: Closing,
}

impl<D: DriveControl> Tasks<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        stripe_writer: &Rc<StripeWriter<D>>,
        foreground: &Rc<Foreground>,
        moving: Option<Rc<Moving>>,
        inheritance: Inheritance<D>,
    ) -> Self {
        let (closing, mender) = (Closing::default(), Rc::new(Mender::new(ground, stripes)));
        let Inheritance { rebuild_pace, scrub_pace, spares } = inheritance;
        let rebuild = Rebuild::new(ground, stripes, &mender);
        let rebuild = Runner::new(ground, foreground, &closing, rebuild, rebuild_pace);
        let scrub = Scrub::new(ground, stripes, stripe_writer, &mender);
        let scrub = Runner::new(ground, foreground, &closing, scrub, scrub_pace);
        let resync = Resync::new(ground, stripes, foreground, &rebuild);
        let vouching = Vouching::new(ground, stripes, foreground, &rebuild);
        let beside = Beside { foreground, closing: &closing, rebuild: &rebuild, resync: &resync };
        let reshape = moving.map(|moving| Reshape::new(ground, stripes, &mender, &beside, moving));
        let replacements = Replacements::new(ground, stripes, &rebuild, &closing, spares);
        Self { rebuild, scrub, resync, vouching, replacements, reshape, closing }
    }

    /// Paces and spares, for the tasks of an array that takes over.
    pub(crate) fn hand_over(&self) -> Inheritance<D> {
        Inheritance {
            rebuild_pace: self.rebuild.pace(),
            scrub_pace: self.scrub.pace(),
            spares: self.replacements.hand_over(),
        }
    }

    /// How many hold each task when nothing is under way, in all. The worker of a move is left out: while
    /// there is one, nothing but the worker itself changes the shape.
    pub(crate) fn holders(&self) -> usize {
        Rc::strong_count(&self.rebuild)
            + Rc::strong_count(&self.scrub)
            + Rc::strong_count(&self.resync)
            + Rc::strong_count(&self.vouching)
            + Rc::strong_count(&self.replacements)
    }

    /// Whether the array is being stopped.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_begun()
    }

    /// Has all tasks end, and waits for that. None begins any more.
    pub(crate) async fn close(&self) {
        self.closing.begin();
        self.rebuild.ended().await;
        self.scrub.ended().await;
        if let Some(reshape) = &self.reshape {
            reshape.moving().rested().await;
        }
    }

    pub(crate) fn pace(&self, task: BackgroundTask) -> Pace {
        match task {
            BackgroundTask::Rebuild => self.rebuild.pace(),
            BackgroundTask::Scrub => self.scrub.pace(),
        }
    }

    pub(crate) fn set_pace(&self, task: BackgroundTask, pace: Pace) {
        match task {
            BackgroundTask::Rebuild => self.rebuild.set_pace(pace),
            BackgroundTask::Scrub => self.scrub.set_pace(pace),
        }
    }

    /// Has a task end as soon as what it has under way is done.
    pub(crate) fn cancel(&self, task: BackgroundTask) {
        match task {
            BackgroundTask::Rebuild => self.rebuild.cancel(),
            BackgroundTask::Scrub => self.scrub.cancel(),
        }
    }

    /// Waits until a task is not running.
    pub(crate) async fn ended(&self, task: BackgroundTask) {
        match task {
            BackgroundTask::Rebuild => self.rebuild.ended().await,
            BackgroundTask::Scrub => self.scrub.ended().await,
        }
    }

    /// Starts the rebuild, if it is not running.
    ///
    /// # Errors
    /// When nothing is to be rebuilt.
    pub(crate) fn begin_rebuild(&self) -> Result<(), ArrayError> {
        if !self.rebuild.work().is_wanted() {
            return Err(ReplaceError::NothingToRebuild.into());
        }
        self.rebuild.begin_if_wanted();
        Ok(())
    }

    pub(crate) fn rebuild_status(&self) -> RebuildStatus {
        self.rebuild.work().status(|done, total| self.rebuild.progress(done, total))
    }

    /// Starts a scrub of everything that was written.
    ///
    /// # Errors
    /// When a scrub is running, or the array is stopped or reshaped.
    pub(crate) fn begin_scrub(&self, repair: ScrubRepair) -> Result<(), ArrayError> {
        if self.is_closing() {
            return Err(ReplaceError::Stopped.into());
        }
        if self.reshape.is_some() {
            return Err(GrowError::Reshaping.into());
        }
        if self.scrub.is_running() {
            return Err(ReplaceError::ScrubRuns.into());
        }
        self.scrub.work().set_repair(repair);
        self.scrub.begin_if_wanted();
        Ok(())
    }

    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        self.scrub.work().status(|done, total| self.scrub.progress(done, total))
    }

    pub(crate) fn reshape_status(&self) -> Option<ReshapeStatus> {
        let reshape = self.reshape.as_ref()?;
        Some(reshape.moving().status(reshape.now(), self.rebuild.pace()))
    }
}
