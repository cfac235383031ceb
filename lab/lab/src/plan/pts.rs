//! The SNIA performance test for solid state storage: purge, preconditioning, and each test in
//! rounds until its five last rounds are steady.
//!
//! The order of the loops is the specification's. The quick form is for trying the plan out and is
//! never called PTS.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use voltier_results::result::{Axes, Role, Test, Variable};

use super::composite::{self, composite};
use super::jobs::{fill, once, point, random_data, timed};
use super::step::{Choice, Group, Load, Pick, Planned, Repeat, Subject, Tracked, Work};
use super::values::{ByteSize, Extent, check, not_empty, time};
use crate::fio::{Job, Pattern};

/// The plan `pts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pts {
    /// The tests: `iops`, `tp`, `lat`, `wsat`, `hir`, `xsr`, `ecw`, `dirth`; `wipc` preconditions alone.
    pub tests: Vec<String>,
    /// Seconds of a point; the specification has a minute.
    pub seconds: f64,
    /// How much of each target is used (active range).
    pub size: Extent,
    /// Rounds at most; the specification has 25.
    pub rounds_max: u32,
    /// Jobs of the IOPS and TP tests (thread count).
    pub threads: u32,
    /// Requests in flight of each job.
    pub depth: u32,
    /// Times the target is written before a test, workload-independent.
    pub wipc_passes: u32,
    /// Block sizes of the IOPS test, in order.
    pub block_sizes: Vec<ByteSize>,
    /// Shares of reads of the IOPS test, in order.
    pub reads: Vec<u8>,
    /// Block sizes of the throughput test.
    pub tp_block_sizes: Vec<ByteSize>,
    /// Block sizes of the latency test, in order.
    pub lat_block_sizes: Vec<ByteSize>,
    /// Shares of reads of the latency test, in order.
    pub lat_reads: Vec<u8>,
    /// Samples of a round of continuous writing, of which one counts (WSAT, HIR, ECW, DIRTH).
    pub samples: u32,
    /// Samples of continuous writing at most (WSAT).
    pub wsat_samples: u32,
    /// Bursts at each wait state (HIR).
    pub hir_bursts: u32,
    /// Seconds of a burst.
    pub hir_burst_seconds: f64,
    /// Idle seconds after each burst, one wait state after the other.
    pub hir_waits: Vec<u32>,
    /// Samples of continuous writing after each wait state.
    pub hir_baseline_samples: u32,
    /// Samples of each of the three parts (XSR).
    pub xsr_samples: [u32; 3],
    /// Jobs and requests in flight of the demand curves, high to low (ECW, DIRTH).
    pub dirth_loads: Vec<u32>,
    /// Bytes of a request of DIRTH's demand curve.
    pub dirth_block: ByteSize,
    /// Share of reads of DIRTH's demand curve.
    pub dirth_read: u8,
    /// Samples of writing before each demand curve.
    pub dirth_pre_samples: u32,
    /// Samples of each of the three histograms.
    pub dirth_samples: u32,
}

fn kib(sizes: &[u64]) -> Vec<ByteSize> {
    sizes.iter().map(|kib| ByteSize(kib << 10)).collect()
}

impl Pts {
    pub(super) fn new(quick: bool) -> Pts {
        if quick { Pts::quick() } else { Pts::full() }
    }

    /// The settings of the specification.
    pub(super) fn full() -> Pts {
        let mut block_sizes = kib(&[1024, 128, 64, 32, 16, 8, 4]);
        block_sizes.push(ByteSize(512));
        Pts {
            tests: Test::ALL[..8].iter().map(|test| test.key().to_owned()).collect(),
            seconds: 60.0,
            size: Extent::Whole,
            rounds_max: 25,
            threads: 4,
            depth: 32,
            wipc_passes: 2,
            block_sizes,
            reads: vec![100, 95, 65, 50, 35, 5, 0],
            tp_block_sizes: kib(&[128, 1024]),
            lat_block_sizes: vec![ByteSize(512), ByteSize(4096), ByteSize(8192)],
            lat_reads: vec![100, 65, 0],
            samples: 30,
            wsat_samples: 1440,
            hir_bursts: 360,
            hir_burst_seconds: 5.0,
            hir_waits: vec![5, 10, 15, 25, 50],
            hir_baseline_samples: 30,
            xsr_samples: [480, 360, 480],
            dirth_loads: vec![32, 16, 8, 6, 4, 2, 1],
            dirth_block: ByteSize(8192),
            dirth_read: 65,
            dirth_pre_samples: 5,
            dirth_samples: 10,
        }
    }

    fn quick() -> Pts {
        Pts {
            seconds: 0.3,
            size: Extent::Bytes(64 << 20),
            rounds_max: 5,
            wipc_passes: 1,
            block_sizes: kib(&[1024, 128, 4]),
            reads: vec![100, 65, 0],
            tp_block_sizes: kib(&[1024]),
            lat_block_sizes: kib(&[4]),
            samples: 1,
            wsat_samples: 8,
            hir_bursts: 2,
            hir_burst_seconds: 0.3,
            hir_waits: vec![1],
            hir_baseline_samples: 2,
            xsr_samples: [3, 3, 3],
            dirth_loads: vec![8, 1],
            dirth_pre_samples: 1,
            dirth_samples: 2,
            ..Pts::full()
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let blocks = [&self.block_sizes, &self.tp_block_sizes, &self.lat_block_sizes];
        check(self.seconds, &blocks.into_iter().flatten().copied().collect::<Vec<_>>())?;
        check(self.hir_burst_seconds, &[self.dirth_block])?;
        not_empty("tests", &self.tests)?;
        for (name, list) in ["block_sizes", "tp_block_sizes", "lat_block_sizes"].iter().zip(blocks)
        {
            not_empty(name, list)?;
        }
        super::values::known_words("tests", &self.tests, &Test::ALL.map(Test::key))?;
        super::values::percentages("reads", &self.reads)?;
        super::values::percentages("lat_reads", &self.lat_reads)?;
        super::values::percentages("dirth_read", &[self.dirth_read])?;
        super::values::counts("dirth_loads", &self.dirth_loads)?;
        let one = [self.threads, self.depth, self.rounds_max, self.samples, self.dirth_samples];
        super::values::counts("threads, depth, rounds_max, samples and dirth_samples", &one)?;
        for (name, list, needed) in [("reads", &self.reads, 0), ("lat_reads", &self.lat_reads, 0)] {
            if !list.contains(&needed) {
                return Err(format!("{name} must have 0: steady is judged by the writes"));
            }
        }
        Ok(())
    }

    /// The tests that are asked for, in the order of the specification.
    pub(super) fn tests(&self) -> impl Iterator<Item = Test> {
        let is_wanted = |test: &Test| self.tests.iter().any(|name| name == test.key());
        Test::ALL.into_iter().filter(is_wanted)
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects {
            for test in self.tests() {
                let mut of_test = Vec::new();
                self.add(test, subject, &mut of_test);
                for group in &mut of_test {
                    group.test = Some(test);
                }
                groups.append(&mut of_test);
            }
        }
        groups
    }

    fn add(&self, test: Test, subject: &Subject, groups: &mut Vec<Group>) {
        match test {
            Test::Iops => self.iops(subject, groups),
            Test::Tp => self.throughput(subject, groups),
            Test::Lat => self.latency(subject, groups),
            Test::Wsat => self.saturation(subject, groups),
            Test::Hir => self.idle_recovery(subject, groups),
            Test::Xsr => self.cross_stimulus(subject, groups),
            Test::Ecw => {
                let job = |read, shape| {
                    let block = ByteSize(composite::ALIGNMENT);
                    composite(self.random(subject, block, read, shape), subject.block_bytes)
                };
                self.demand(subject, test, composite::READ_PERCENT, &job, groups);
            }
            Test::Dirth => {
                let job = |read, shape| self.random(subject, self.dirth_block, read, shape);
                self.demand(subject, test, self.dirth_read, &job, groups);
            }
            Test::Wipc => groups.push(self.prepare(subject, "wipc", true)),
        }
    }

    /// Purge, and preconditioning where the test has it.
    fn prepare(&self, subject: &Subject, test: &str, preconditioned: bool) -> Group {
        let axes = Axes { phase: format!("purge-{test}"), ..Axes::default() };
        let mut points = vec![Planned { axes, role: Role::Purge, work: Work::Purge }];
        for pass in (1..=self.wipc_passes).filter(|_| preconditioned) {
            let axes = Axes { phase: format!("wipc-{test}"), pass: Some(pass), ..Axes::default() };
            let job = Job { name: "wipc".to_owned(), ..fill(subject.size_bytes) };
            let work = Work::Load(Load::of(job));
            points.push(Planned { axes, role: Role::Fill, work });
        }
        once(subject, points)
    }

    /// Tests that read need what was written: a target that is not preconditioned has been purged.
    fn random(&self, subject: &Subject, block: ByteSize, read: u8, shape: (u32, u32)) -> Job {
        let part = (subject.size_bytes, time(self.seconds));
        let pattern = Pattern::of(true, read);
        Job { more: random_data(), ..timed("pts", pattern, block.0, shape, part) }
    }

    fn iops(&self, subject: &Subject, groups: &mut Vec<Group>) {
        let mut points = Vec::new();
        for read in &self.reads {
            for block in &self.block_sizes {
                let shape = (self.threads, self.depth);
                points.push(point("iops", self.random(subject, *block, *read, shape)));
            }
        }
        let tracked = tracked(&points, 4096, 0, Variable::Iops);
        groups.push(self.prepare(subject, "iops", true));
        groups.push(self.rounds(subject, "iops", points, vec![tracked]));
    }

    fn throughput(&self, subject: &Subject, groups: &mut Vec<Group>) {
        for block in &self.tp_block_sizes {
            let job = |read| {
                let part = (subject.size_bytes, time(self.seconds));
                let pattern = Pattern::of(false, read);
                Job { more: random_data(), ..timed("pts", pattern, block.0, (1, self.depth), part) }
            };
            let points = vec![point("tp", job(100)), point("tp", job(0))];
            let variable = Variable::BytesPerSecond;
            let tracked = [0, 1].map(|point| Tracked { point, variable });
            let name = format!("tp-{}", block.0);
            groups.push(self.prepare(subject, &name, true));
            groups.push(self.rounds(subject, &name, points, tracked.to_vec()));
        }
    }

    fn latency(&self, subject: &Subject, groups: &mut Vec<Group>) {
        let mut points = Vec::new();
        for read in &self.lat_reads {
            for block in &self.lat_block_sizes {
                points.push(point("lat", self.random(subject, *block, *read, (1, 1))));
            }
        }
        let tracked = tracked(&points, 4096, 0, Variable::LatencyNs);
        groups.push(self.prepare(subject, "lat", true));
        groups.push(self.rounds(subject, "lat", points, vec![tracked]));
    }

    fn saturation(&self, subject: &Subject, groups: &mut Vec<Group>) {
        groups.push(self.prepare(subject, "wsat", false));
        let mut group = self.writing(subject, "wsat", &self.small_writes(subject), 0);
        if let Repeat::UntilSteady { rounds_max, bytes_max, .. } = &mut group.repeat {
            *rounds_max = (self.wsat_samples / self.samples).max(1);
            *bytes_max = Some(4 * subject.size_bytes);
        }
        groups.push(group);
    }

    fn small_writes(&self, subject: &Subject) -> Job {
        self.random(subject, ByteSize(4096), 0, (self.threads, self.depth))
    }

    /// Continuous random writing in rounds of samples, of which the one at `counted` decides.
    fn writing(&self, subject: &Subject, phase: &str, job: &Job, counted: u32) -> Group {
        let sample = |number| {
            let mut planned = point(phase, job.clone());
            planned.axes.pass = Some(number);
            planned
        };
        let points = (1..=self.samples).map(sample).collect();
        let tracked = Tracked { point: counted as usize, variable: Variable::Iops };
        self.rounds(subject, phase, points, vec![tracked])
    }

    fn idle_recovery(&self, subject: &Subject, groups: &mut Vec<Group>) {
        groups.push(self.prepare(subject, "hir", false));
        let writes = self.small_writes(subject);
        groups.push(self.writing(subject, "hir-pc", &writes, self.samples - 1));
        let mut points = Vec::new();
        for wait in &self.hir_waits {
            let mut job = writes.clone();
            job.until = crate::fio::Until::Time(time(self.hir_burst_seconds));
            let axes =
                |phase: &str| Axes { idle_s: Some(*wait), ..super::jobs::axes_of(phase, &job) };
            let bursts = Work::Bursts {
                load: Load::of(job.clone()),
                count: self.hir_bursts,
                idle: Duration::from_secs(u64::from(*wait)),
            };
            points.push(Planned::measured(axes("hir"), bursts));
            let baseline = self.continuous(job.clone(), self.hir_baseline_samples);
            points.push(Planned::measured(axes("hir-baseline"), baseline));
        }
        groups.push(once(subject, points));
    }

    /// One long run with a sample a point's length.
    fn continuous(&self, mut job: Job, samples: u32) -> Work {
        job.until = crate::fio::Until::Time(time(self.seconds) * samples.max(1));
        Work::Load(Load { sample: Some(time(self.seconds)), ..Load::of(job) })
    }

    fn cross_stimulus(&self, subject: &Subject, groups: &mut Vec<Group>) {
        groups.push(self.prepare(subject, "xsr", false));
        let part = (subject.size_bytes, time(self.seconds));
        let mut points = Vec::new();
        for (index, (is_random, block)) in
            [(false, 1 << 20), (true, 8 << 10), (false, 1 << 20)].into_iter().enumerate()
        {
            let pattern = Pattern::of(is_random, 0);
            let job = Job { more: random_data(), ..timed("pts", pattern, block, (1, 32), part) };
            let axes = Axes { pass: Some(index as u32 + 1), ..super::jobs::axes_of("xsr", &job) };
            points.push(Planned::measured(axes, self.continuous(job, self.xsr_samples[index])));
        }
        groups.push(once(subject, points));
    }

    /// A demand curve, and histograms of three of its points. `job` has a share of reads, jobs and
    /// depth. Preconditioning and the writes between have the reference demand, the highest of the
    /// curve, by which the curve is judged as well.
    fn demand(
        &self,
        subject: &Subject,
        test: Test,
        read: u8,
        job: &dyn Fn(u8, (u32, u32)) -> Job,
        groups: &mut Vec<Group>,
    ) {
        let test = test.key();
        let most = self.dirth_loads.iter().copied().max().unwrap_or(32);
        let writes = job(0, (most, most));
        groups.push(self.prepare(subject, test, false));
        groups.push(self.writing(subject, &format!("{test}-pc"), &writes, 0));
        let before = |what: &str, samples: u32| {
            let axes = super::jobs::axes_of(&format!("{test}-{what}"), &writes);
            let work = self.continuous(writes.clone(), samples);
            Planned { axes, role: Role::PreWrite, work }
        };
        let mut points = vec![before("pre", self.dirth_pre_samples)];
        for threads in &self.dirth_loads {
            for depth in &self.dirth_loads {
                points.push(point(test, job(read, (*threads, *depth))));
            }
        }
        let reference = |planned: &Planned| {
            planned.role.is_measured()
                && (planned.axes.jobs, planned.axes.depth) == (Some(most), Some(most))
        };
        let point = points.iter().position(reference).unwrap_or(1);
        let tracked = vec![Tracked { point, variable: Variable::Iops }];
        groups.push(self.rounds(subject, test, points, tracked));
        let picks = [("max", Pick::Most), ("mid", Pick::Middle), ("min", Pick::Least)];
        for (name, pick) in picks {
            let job = job(read, (1, 1));
            let mut axes = super::jobs::axes_of(&format!("{test}-{name}"), &job);
            (axes.jobs, axes.depth) = (None, None);
            let Work::Load(load) = self.continuous(job, self.dirth_samples) else { continue };
            let choice = Choice { curve: test.to_owned(), pick };
            let work = Work::Load(Load { pick: Some(choice), ..load });
            let pre = before(&format!("pre-{name}"), 6 * self.dirth_samples);
            groups.push(once(subject, vec![pre, Planned::measured(axes, work)]));
        }
    }

    fn rounds(
        &self,
        subject: &Subject,
        name: &str,
        points: Vec<Planned>,
        tracked: Vec<Tracked>,
    ) -> Group {
        let rounds_max = self.rounds_max;
        let name = name.to_owned();
        let repeat = Repeat::UntilSteady { name, rounds_max, tracked, bytes_max: None };
        Group { repeat, ..once(subject, points) }
    }
}

/// The point of a block size and a share of reads; the nearest block where it is not among them.
fn tracked(points: &[Planned], block: u64, read: u8, variable: Variable) -> Tracked {
    let far = |planned: &Planned| planned.axes.block_bytes.unwrap_or(0).abs_diff(block);
    let of_share = points.iter().enumerate();
    let of_share = of_share.filter(|(_, planned)| planned.axes.read_percent == Some(read));
    let point = of_share.min_by_key(|(_, planned)| far(planned)).map_or(0, |(index, _)| index);
    Tracked { point, variable }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject { name: "ssd".to_owned(), size_bytes: 1 << 30, ..Subject::default() }
    }

    #[test]
    fn the_loops_are_nested_as_the_specification_has_them() {
        let pts = Pts { tests: vec!["iops".to_owned()], ..Pts::full() };
        let groups = pts.groups(&[subject()]);
        let ids: Vec<String> = groups[0].round(1).iter().map(Planned::id).collect();
        assert_eq!(ids, ["ssd/purge-iops", "ssd/wipc-iops/pass=1", "ssd/wipc-iops/pass=2"]);
        let round = groups[1].round(3);
        assert_eq!(round.len(), 56);
        let place = |planned: &Planned| {
            (planned.axes.read_percent.unwrap(), planned.axes.block_bytes.unwrap())
        };
        let places: Vec<(u8, u64)> = round.iter().map(place).collect();
        assert_eq!(places[..2], [(100, 1 << 20), (100, 128 << 10)]);
        assert_eq!((places[7], places[8]), ((100, 512), (95, 1 << 20)));
        assert_eq!(places[55], (0, 512));
        assert_eq!(round[54].id(), "ssd/iops/round=3/read=0/bs=4096/jobs=4/depth=32");
        let Repeat::UntilSteady { rounds_max, tracked, .. } = &groups[1].repeat else {
            panic!("rounds")
        };
        assert_eq!((*rounds_max, tracked[0].point, tracked[0].variable), (25, 54, Variable::Iops));
        assert_eq!(groups[1].points[54].work, groups[1].round(9)[54].work);
    }

    #[test]
    fn every_test_is_there_with_its_own_purge() {
        let pts = Pts::full();
        pts.check().unwrap();
        let groups = pts.groups(&[subject()]);
        let purges = groups.iter().flat_map(|group| &group.points);
        let purges: Vec<&str> = purges
            .filter(|planned| planned.work == Work::Purge)
            .map(|planned| planned.axes.phase.as_str())
            .collect();
        assert_eq!(
            purges,
            [
                "purge-iops",
                "purge-tp-131072",
                "purge-tp-1048576",
                "purge-lat",
                "purge-wsat",
                "purge-hir",
                "purge-xsr",
                "purge-ecw",
                "purge-dirth"
            ]
        );
        let all: Vec<String> = groups
            .iter()
            .flat_map(|group| (1..=group.rounds().1).flat_map(|round| group.round(round)))
            .map(|planned| planned.id())
            .collect();
        let mut unique = all.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "every point has a name of its own");
        assert_eq!(super::super::step::estimate(&groups[1..2]).points_max, 25 * 56);
    }

    #[test]
    fn rounds_have_names_of_their_own_and_demand_is_preconditioned_at_its_reference() {
        let groups = Pts::full().groups(&[subject()]);
        let names: Vec<String> = groups.iter().filter_map(Group::rounds_name).collect();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!((unique.len(), names.len()), (10, 10), "{names:?}");
        assert!(names.contains(&"ssd/tp-131072".to_owned()), "{names:?}");
        for test in ["ecw", "dirth"] {
            let of = |name: String| groups.iter().find(|g| g.rounds_name().as_ref() == Some(&name));
            let writes = &of(format!("ssd/{test}-pc")).unwrap().points[0].axes;
            assert_eq!((writes.jobs, writes.depth), (Some(32), Some(32)), "{test}");
            let curve = of(format!("ssd/{test}")).unwrap();
            let Repeat::UntilSteady { tracked, .. } = &curve.repeat else { panic!("rounds") };
            let reference = &curve.points[tracked[0].point].axes;
            assert_eq!((reference.jobs, reference.depth), (Some(32), Some(32)), "{test}");
            assert_eq!(curve.test.map(Test::key), Some(test));
        }
    }

    #[test]
    fn latency_is_judged_by_single_writes_of_4_kib() {
        let pts = Pts { tests: vec!["lat".to_owned()], ..Pts::full() };
        let group = &pts.groups(&[subject()])[1];
        assert_eq!(group.points.len(), 9);
        let Repeat::UntilSteady { tracked, .. } = &group.repeat else { panic!("rounds") };
        let axes = &group.points[tracked[0].point].axes;
        assert_eq!((axes.read_percent, axes.block_bytes), (Some(0), Some(4096)));
        assert_eq!((axes.jobs, axes.depth), (Some(1), Some(1)));
    }
}
