//! What the meters of volumes and arrays have counted at moments of the last minute.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use voltier_block::MeterCounts;

use crate::array_status::ArrayDetail;
use crate::recent::Recent;
use crate::service::state::claims::Subject;
use crate::status::VolumeStatus;

/// Moments that are closer to each other than this are one.
const STEP: Duration = Duration::from_millis(900);
/// Moments older than this are kept farther apart.
const CLOSE: Duration = Duration::from_secs(15);
/// How far apart.
const FAR_STEP: Duration = Duration::from_secs(4);
/// The oldest moment: the longest interval, and what a look may be late.
const KEPT: Duration = Duration::from_secs(75);

/// The moments of each volume and array.
#[derive(Default)]
pub(crate) struct History {
    of: BTreeMap<Subject, VecDeque<Moment>>,
}

/// Counts that were the same from one moment to another: one entry for as long as nobody asks for anything.
struct Moment {
    at: Instant,
    until: Instant,
    meters: Vec<MeterCounts>,
}

/// A status with meters, of which each has a place for what it did of late.
pub(crate) trait Metered {
    /// The counts, in an order that is always the same; none of what is not served.
    fn meters(&self) -> Vec<&MeterCounts>;

    /// The places for the intervals, in the same order.
    fn recents(&mut self) -> Vec<&mut Option<Recent>>;
}

impl History {
    /// Keeps what a status counted now, and says in it what it did in about the last `over`.
    pub(crate) fn take(
        &mut self,
        subject: &Subject,
        status: &mut impl Metered,
        now: Instant,
        over: Duration,
    ) {
        let meters: Vec<MeterCounts> = status.meters().into_iter().cloned().collect();
        if meters.is_empty() {
            self.of.remove(subject);
            return;
        }
        let moments = self.of.entry(subject.clone()).or_default();
        // A device that came or went: what was counted before is of other devices.
        moments.retain(|it| it.meters.len() == meters.len());
        if let Some((begin, at)) = begin_of(moments, now, over) {
            let seconds = (now - at).as_secs_f64();
            let counted = meters.iter().zip(&begin.meters).map(|(now, before)| now.since(before));
            for (recent, counted) in status.recents().into_iter().zip(counted) {
                *recent = Some(Recent::of(&counted, seconds));
            }
        }
        match moments.back_mut() {
            Some(last) if last.meters == meters => last.until = now,
            Some(last) if now - last.at < STEP => {}
            _ => moments.push_back(Moment { at: now, until: now, meters }),
        }
        thin(moments, now);
    }

    /// Forgets what is not on record any more.
    pub(crate) fn retain(&mut self, is_known: impl Fn(&Subject) -> bool) {
        self.of.retain(|subject, _| is_known(subject));
    }
}

/// The begin of an interval: the newest moment that is old enough, but a tenth; else the oldest one.
fn begin_of(
    moments: &VecDeque<Moment>,
    now: Instant,
    over: Duration,
) -> Option<(&Moment, Instant)> {
    let least = over.saturating_sub(over / 10);
    let old_enough = moments.iter().rev().find(|it| now - it.at >= least);
    let begin = old_enough.or(moments.front())?;
    // As long as asked for, if the counts were the same then.
    let at = begin.until.min(now.checked_sub(over).unwrap_or(begin.at).max(begin.at));
    (now - at >= STEP / 2).then_some((begin, at))
}

fn thin(moments: &mut VecDeque<Moment>, now: Instant) {
    let mut kept: Option<Instant> = None;
    moments.retain(|it| {
        let age = now - it.until;
        let is_far = kept.is_none_or(|kept| it.at - kept >= FAR_STEP);
        let stays = age <= CLOSE || age <= KEPT && is_far;
        if stays {
            kept = Some(it.at);
        }
        stays
    });
}

impl Metered for VolumeStatus {
    fn meters(&self) -> Vec<&MeterCounts> {
        let all = [&self.meter, &self.ssd.meter, &self.hdd.meter];
        all.into_iter().flatten().map(|it| &**it).collect()
    }

    fn recents(&mut self) -> Vec<&mut Option<Recent>> {
        let all = [
            (&self.meter, &mut self.recent),
            (&self.ssd.meter, &mut self.ssd.recent),
            (&self.hdd.meter, &mut self.hdd.recent),
        ];
        all.into_iter().filter(|(meter, _)| meter.is_some()).map(|(_, recent)| recent).collect()
    }
}

impl Metered for ArrayDetail {
    fn meters(&self) -> Vec<&MeterCounts> {
        let members = self.members.iter().map(|it| &it.meter);
        std::iter::once(&self.meter).chain(members).flatten().map(|it| &**it).collect()
    }

    fn recents(&mut self) -> Vec<&mut Option<Recent>> {
        let members = self.members.iter_mut().map(|it| (&it.meter, &mut it.recent));
        let all = std::iter::once((&self.meter, &mut self.recent)).chain(members);
        all.filter(|(meter, _)| meter.is_some()).map(|(_, recent)| recent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct One(MeterCounts, Option<Recent>);

    impl Metered for One {
        fn meters(&self) -> Vec<&MeterCounts> {
            vec![&self.0]
        }

        fn recents(&mut self) -> Vec<&mut Option<Recent>> {
            vec![&mut self.1]
        }
    }

    #[test]
    fn an_interval_begins_at_the_moment_that_is_nearest_to_what_was_asked_for() {
        let subject = Subject::Volume("v".parse().unwrap());
        let (mut history, begin) = (History::default(), crate::service::state::live::now());
        let clock = std::rc::Rc::new(std::cell::Cell::new(0));
        let meter = voltier_block::Meter::new(clock);
        let mut ask = |at_s: u64, over_s: u64| {
            drop(meter.begin(voltier_block::Asked::Read, 512));
            let mut status = One(meter.counts(), None);
            let now = begin + Duration::from_secs(at_s);
            history.take(&subject, &mut status, now, Duration::from_secs(over_s));
            status.1.map(|it| it.seconds)
        };
        assert_eq!(ask(0, 10), None);
        for at_s in (2..300).step_by(2) {
            let seconds = ask(at_s, 10).unwrap();
            assert_eq!(seconds, at_s.min(10) as f64, "{at_s}");
        }
        assert_eq!(ask(299, 1), Some(1.0));
        let minute = ask(299, 60).unwrap();
        assert!((54.0..=64.0).contains(&minute), "{minute}");
        assert!(history.of[&subject].len() < 30, "{}", history.of[&subject].len());
        // Idle: no more entries, and intervals of any length.
        let mut rest = |at_s: u64| {
            let (now, mut status) = (begin + Duration::from_secs(at_s), One(meter.counts(), None));
            history.take(&subject, &mut status, now, Duration::from_secs(10));
            status.1.map(|it| (it.seconds, it.reads.per_second))
        };
        for at_s in (300..400).step_by(2) {
            rest(at_s);
        }
        assert_eq!(rest(400), Some((10.0, 0.0)));
        assert_eq!(history.of[&subject].len(), 1, "the busy minute is over");
        history.retain(|_| false);
        assert!(history.of.is_empty());
    }
}
