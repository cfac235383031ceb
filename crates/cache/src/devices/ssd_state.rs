//! The states of the SSD, and the events that lead from one to another. Pure.

/// States of the SSD: each says what the cache may do with it, and with the origin beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SsdState {
    /// The SSD serves.
    Online,
    /// The SSD takes no writes, and its reads work: the log has ended, and the cleaner writes all dirty
    /// lines to the origin. Nothing else may change on the origin, because a start after a crash finds the
    /// log as it ended, and writes the same lines again.
    Evacuating,
    /// The SSD is given up, and nothing may change on the origin before the loss is on record. An SSD
    /// that comes back could be trusted again.
    LossUnrecorded,
    /// As before, and the cleaner has lines left for the time when the loss is on record.
    SalvageAwaited,
    /// The loss is on record, and no start trusts the SSD any more. Lines that were left go to the
    /// origin, also those that a replay could have written over. Nothing else changes there.
    Salvaging,
    /// The cache has ended without the SSD, which stays as it is for the next start. No record says so, and
    /// nothing changes on the origin any more.
    Left,
    /// The SSD is given up, and the origin serves alone.
    Lost,
}

/// Events that change the state of the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SsdEvent {
    /// Tries of a write are used up, a flush failed, or too many lines cannot be read. The SSD's own part or
    /// the checkpointer met the error, and says so.
    WritesRefused,
    /// The device is gone: the SSD's own part says so. Or the judge of silence spares the SSD, the owner
    /// ends the cache as a kill would, or the cleaner has evacuated every line. `has_gate` says whether
    /// somebody is to record the loss.
    GivenUp { has_gate: bool },
    /// The cleaner ends an evacuation with lines left, to try them when the loss is on record: the cleaner
    /// says so.
    EvacuationStalled,
    /// The user ends the cache without a silent SSD: the judge of silence says so.
    Left,
    /// The failure gate has run: the task that runs the gate says so.
    LossRecorded,
    /// The cleaner has tried the lines that were left, or tries none: the cleaner's guard says so.
    SalvageEnded,
}

/// The reasons for which an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unchanged {
    /// The log has ended before, and the SSD gets no writes that it could refuse.
    LogHasEnded,
    /// The cache has done without the SSD since before: what is under way ends by its own events.
    OutOfService,
    /// Lines are left of an evacuation, and none is under way.
    NoEvacuation,
    /// No loss waits for its record.
    NoLossUnrecorded,
    /// The cleaner has no lines that were left.
    NothingToSalvage,
}

impl SsdState {
    /// The transition table: the state after an event, or why the event changes nothing.
    pub(super) fn after(self, event: SsdEvent) -> Result<Self, Unchanged> {
        use SsdEvent as Event;
        match (self, event) {
            (Self::Online, Event::WritesRefused) => Ok(Self::Evacuating),
            (
                Self::Evacuating
                | Self::LossUnrecorded
                | Self::SalvageAwaited
                | Self::Salvaging
                | Self::Left
                | Self::Lost,
                Event::WritesRefused,
            ) => Err(Unchanged::LogHasEnded),

            (Self::Online | Self::Evacuating, Event::GivenUp { has_gate: true }) => {
                Ok(Self::LossUnrecorded)
            }
            (Self::Online | Self::Evacuating, Event::GivenUp { has_gate: false })
            | (Self::Salvaging, Event::GivenUp { has_gate: true | false }) => Ok(Self::Lost),
            (Self::Online | Self::Evacuating, Event::Left) => Ok(Self::Left),
            (
                Self::LossUnrecorded | Self::SalvageAwaited | Self::Left | Self::Lost,
                Event::GivenUp { has_gate: true | false } | Event::Left,
            )
            | (Self::Salvaging, Event::Left) => Err(Unchanged::OutOfService),

            (Self::Evacuating, Event::EvacuationStalled) => Ok(Self::SalvageAwaited),
            (
                Self::Online
                | Self::LossUnrecorded
                | Self::SalvageAwaited
                | Self::Salvaging
                | Self::Left
                | Self::Lost,
                Event::EvacuationStalled,
            ) => Err(Unchanged::NoEvacuation),

            (Self::LossUnrecorded, Event::LossRecorded) => Ok(Self::Lost),
            (Self::SalvageAwaited, Event::LossRecorded) => Ok(Self::Salvaging),
            (
                Self::Online | Self::Evacuating | Self::Salvaging | Self::Left | Self::Lost,
                Event::LossRecorded,
            ) => Err(Unchanged::NoLossUnrecorded),

            (Self::SalvageAwaited, Event::SalvageEnded) => Ok(Self::LossUnrecorded),
            (Self::Salvaging, Event::SalvageEnded) => Ok(Self::Lost),
            (
                Self::Online | Self::Evacuating | Self::LossUnrecorded | Self::Left | Self::Lost,
                Event::SalvageEnded,
            ) => Err(Unchanged::NothingToSalvage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_in_every_state_does_what_the_table_says() {
        use SsdEvent::{EvacuationStalled, GivenUp, LossRecorded, SalvageEnded, WritesRefused};
        use SsdState::{Evacuating, LossUnrecorded, Lost, Online, SalvageAwaited, Salvaging};
        use Unchanged::{
            LogHasEnded, NoEvacuation, NoLossUnrecorded, NothingToSalvage, OutOfService,
        };
        const LEFT: SsdState = SsdState::Left;
        let states = [Online, Evacuating, LossUnrecorded, SalvageAwaited, Salvaging, LEFT, Lost];
        let ended = Err(LogHasEnded);
        let (out, none) = (Err(OutOfService), Err(NoEvacuation));
        let (unrecorded, salvaged) = (Err(NoLossUnrecorded), Err(NothingToSalvage));
        let (gated, loss) = (GivenUp { has_gate: true }, Ok(LossUnrecorded));
        let (ungated, lost) = (GivenUp { has_gate: false }, Ok(Lost));
        let (awaited, going) = (Ok(SalvageAwaited), Ok(Salvaging));
        // One column a state, in the order of `states`.
        for (event, after) in [
            (WritesRefused, [Ok(Evacuating), ended, ended, ended, ended, ended, ended]),
            (gated, [loss, loss, out, out, lost, out, out]),
            (ungated, [lost, lost, out, out, lost, out, out]),
            (SsdEvent::Left, [Ok(LEFT), Ok(LEFT), out, out, out, out, out]),
            (EvacuationStalled, [none, awaited, none, none, none, none, none]),
            (
                LossRecorded,
                [unrecorded, unrecorded, lost, going, unrecorded, unrecorded, unrecorded],
            ),
            (SalvageEnded, [salvaged, salvaged, salvaged, loss, lost, salvaged, salvaged]),
        ] {
            for (state, after) in states.into_iter().zip(after) {
                assert_eq!(state.after(event), after, "{state:?} {event:?}");
            }
        }
    }
}
