//! Members with errors, and members that are slow.

use std::future::Future;

use voltier_array::{
    Array, Geometry, HealthNews, HealthPolicy, Layout, Level, MemberIndex, SlowAction,
};
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, MIB, Nanos, Prng, SECTOR_BYTES,
    SectorRange,
};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice, Fault, FaultDevice, Faults, IoKind, IoLog, LogDevice};
use voltier_ring::{Executor, Handle, NoFiles};

type Drive = LogDevice<DelayDevice<FaultDevice<MemoryDevice>>>;

const SECOND_NS: Nanos = 1_000_000_000;
const HOUR_NS: Nanos = 3600 * SECOND_NS;
const USUAL_NS: Nanos = 1_000_000;

/// A bare array, and what can be done to each of its members.
struct World {
    handle: Handle,
    array: Array<Drive>,
    delays: Vec<Delay>,
    faults: Vec<Faults>,
    logs: Vec<IoLog>,
}

fn with_world<F: Future<Output = ()> + 'static>(
    level: Level,
    members: usize,
    test: impl FnOnce(World) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let sectors = MIB / SECTOR_BYTES;
    let geometry = Geometry::new(level, Layout::default(), members, 16384, sectors);
    let delays: Vec<Delay> = (0..members).map(|_| Delay::new(USUAL_NS, USUAL_NS, 0)).collect();
    let faults: Vec<Faults> = (0..members).map(|_| Faults::new()).collect();
    let logs: Vec<IoLog> = (0..members).map(|_| IoLog::new(0)).collect();
    let drive = |member: usize| {
        let memory = MemoryDevice::new(MIB);
        let faulty = FaultDevice::new(handle.clone(), memory, faults[member].clone());
        let late = DelayDevice::new(handle.clone(), faulty, delays[member].clone());
        LogDevice::new(handle.clone(), late, logs[member].clone())
    };
    let drives = (0..members).map(|member| Some(drive(member))).collect();
    let array = Array::new(&handle, geometry.expect("possible"), drives).expect("possible");
    let world = World { handle, array, delays, faults, logs };
    executor.block_on(test(world));
}

impl World {
    fn set(&self, change: impl FnOnce(&mut HealthPolicy)) {
        let mut policy = HealthPolicy { slow_window_ns: SECOND_NS, ..HealthPolicy::default() };
        change(&mut policy);
        self.array.set_health_policy(policy);
    }

    fn slow_members(&self) -> Vec<usize> {
        let members = 0..self.delays.len();
        members.filter(|member| self.array.health(MemberIndex(*member)).is_slow).collect()
    }

    fn reads(&self, member: usize) -> u64 {
        self.logs[member].totals(IoKind::Read).requests
    }

    fn set_delay(&self, member: usize, delay_ns: Nanos) {
        self.delays[member].set(delay_ns, delay_ns, 0);
    }

    async fn fill(&self) {
        for at in 0..self.array.limits().sectors / 8 {
            self.write(at, 0).await.expect("write");
        }
    }

    async fn write(&self, block: u64, add: u8) -> IoResult<()> {
        let data = Bytes::copy_of(&[block as u8 ^ add; 4096]);
        self.array.write(Lba(block * 8), data.into(), Durability::Cached).await
    }

    /// Reads at random places by eight at once, for so long; what they find is right.
    async fn load(&self, for_ns: Nanos, writes_in_8: u64) {
        let until = self.handle.now() + for_ns;
        let blocks = self.array.limits().sectors / 8;
        let client = |number: u64| {
            let (handle, array) = (self.handle.clone(), self.array.clone());
            self.handle.spawn(async move {
                let mut dice = Prng::new(number);
                while handle.now() < until {
                    let block = dice.below(blocks);
                    let at = Lba(block * 8);
                    if dice.below(8) < writes_in_8 {
                        let data = Bytes::copy_of(&[block as u8; 4096]);
                        array.write(at, data.into(), Durability::Cached).await.expect("write");
                    } else {
                        let read = array.read(at, Buf::new(4096)).await.expect("read");
                        assert!(read.iter().all(|byte| *byte == block as u8), "block {block}");
                    }
                }
            })
        };
        let clients: Vec<_> = (1..=8).map(client).collect();
        for client in clients {
            client.await;
        }
    }

    /// The member with the chunk of a block, and where.
    fn place(&self, block: u64) -> (usize, Lba) {
        let geometry = self.array.geometry();
        let place = geometry.place_of(Lba(block * 8));
        let slot = geometry.slot_of_column(place.stripe, place.column);
        let at = geometry.member_lba(place.stripe, block * 8 % geometry.chunk_sectors());
        (geometry.member_of(place.stripe, slot).0, at)
    }

    fn spoil(&self, block: u64, times: u32) -> usize {
        let (member, at) = self.place(block);
        let range = SectorRange::new(at, 8);
        self.faults[member].inject(Fault::ReadError { range, times });
        member
    }

    async fn read(&self, block: u64) -> IoResult<u8> {
        self.array.read(Lba(block * 8), Buf::new(4096)).await.map(|read| read[0])
    }

    /// So many reads of a block that fail at its member.
    async fn errors(&self, block: u64, count: u32) -> usize {
        let mut member = 0;
        for _ in 0..count {
            member = self.spoil(block, 1);
            assert_eq!(self.read(block).await, Ok(block as u8));
        }
        member
    }
}

#[test]
fn read_errors_are_repaired_and_counted_and_the_member_stays_until_they_are_too_many() {
    with_world(Level::Raid6, 6, |world| async move {
        world.fill().await;
        let member = world.errors(5, 20).await;
        let health = world.array.health(MemberIndex(member));
        assert_eq!(
            (health.counts.errors_read, health.counts.repaired, health.counts.errors_recent),
            (20, 20, 20)
        );
        assert!(
            world.array.is_online(MemberIndex(member)) && world.array.take_health_news().is_empty()
        );
        assert_eq!(world.array.counts().repairs, 20);
        world.errors(5, 1).await;
        assert!(!world.array.is_online(MemberIndex(member)));
        let news = HealthNews::TooManyErrors { member, errors: 21, is_failed: true };
        assert_eq!(world.array.take_health_news(), [news]);
        world.load(SECOND_NS / 10, 4).await;
    });
}

#[test]
fn errors_with_hours_between_them_never_add_up() {
    with_world(Level::Raid5, 4, |world| async move {
        world.fill().await;
        for _ in 0..10 {
            let member = world.errors(9, 10).await;
            assert!(world.array.is_online(MemberIndex(member)));
            world.handle.sleep(HOUR_NS).await;
        }
        let (member, _) = world.place(9);
        let health = world.array.health(MemberIndex(member));
        assert_eq!((health.counts.errors_read, health.counts.errors_recent), (100, 9));
        // With a window of a minute instead the last ones are long ago.
        world.set(|policy| policy.error_window_ns = 60 * SECOND_NS);
        assert_eq!(world.array.health(MemberIndex(member)).counts.errors_recent, 0);
    });
}

#[test]
fn a_member_that_cannot_be_lost_is_kept_and_reported_and_without_a_limit_so_is_every_one() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid1, 2)] {
        with_world(level, members, move |world| async move {
            world.fill().await;
            world.set(|policy| policy.max_errors = 3);
            let (member, _) = world.place(0);
            world
                .array
                .fail(if member == 0 { MemberIndex(1) } else { MemberIndex(0) })
                .expect("it can");
            // Reads fail for which the last copy or parity cannot make up, and no others.
            for _ in 0..9 {
                world.spoil(0, 1);
                assert_eq!(world.read(0).await, Err(IoError::Medium));
                assert_eq!(world.read(0).await, Ok(0));
            }
            assert!(world.array.is_online(MemberIndex(member)));
            assert!(world.array.health(MemberIndex(member)).has_too_many_errors);
            let news = HealthNews::TooManyErrors { member, errors: 4, is_failed: false };
            assert_eq!(world.array.take_health_news(), [news], "once");
        });
    }
    with_world(Level::Raid6, 5, |world| async move {
        world.fill().await;
        world.set(|policy| policy.max_errors = 0);
        let member = world.errors(0, 100).await;
        assert!(world.array.is_online(MemberIndex(member)));
        assert!(!world.array.health(MemberIndex(member)).has_too_many_errors);
    });
}

#[test]
fn a_write_that_fails_once_is_made_again_and_one_that_always_fails_costs_the_member() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5)] {
        with_world(level, members, |world| async move {
            world.fill().await;
            let (member, at) = world.place(3);
            let range = SectorRange::new(at, 8);
            world.faults[member].inject(Fault::WriteError { range, times: 1 });
            world.write(3, 0).await.expect("the second try is taken");
            assert!(world.array.is_online(MemberIndex(member)));
            let health = world.array.health(MemberIndex(member));
            assert_eq!((health.counts.errors_write, health.counts.errors_recent), (1, 1));
            assert_eq!(world.read(3).await, Ok(3));
            world.faults[member].inject(Fault::WriteError { range, times: u32::MAX });
            world.write(3, 0).await.expect("the others have it");
            assert!(!world.array.is_online(MemberIndex(member)));
            assert_eq!(world.array.health(MemberIndex(member)).counts.errors_write, 3);
            assert_eq!(world.read(3).await, Ok(3));
        });
    }
}

#[test]
fn writes_that_always_need_a_second_try_cost_the_member_in_the_end() {
    with_world(Level::Raid6, 5, |world| async move {
        world.fill().await;
        let (member, at) = world.place(3);
        let range = SectorRange::new(at, 8);
        for _ in 0..21 {
            assert!(world.array.is_online(MemberIndex(member)));
            world.faults[member].inject(Fault::WriteError { range, times: 1 });
            world.write(3, 0).await.expect("taken");
        }
        assert!(!world.array.is_online(MemberIndex(member)));
        world.load(SECOND_NS / 10, 4).await;
    });
}

#[test]
fn a_slow_copy_is_found_and_read_no_more_until_it_has_recovered() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)] {
        with_world(level, members, |world| async move {
            world.fill().await;
            world.set(|_| {});
            world.load(3 * SECOND_NS, 1).await;
            assert_eq!(world.slow_members(), [0; 0]);
            world.set_delay(1, 20 * USUAL_NS);
            world.load(2 * SECOND_NS, 1).await;
            assert_eq!(world.slow_members(), [1]);
            let news = world.array.take_health_news();
            let is_it = |news: &HealthNews| match *news {
                HealthNews::Slow { member, mean_ns, others_ns } => {
                    member == 1 && mean_ns >= 20 * USUAL_NS && others_ns < 2 * USUAL_NS
                }
                _ => false,
            };
            assert!(news.len() == 1 && is_it(&news[0]), "{news:?}");
            let before = [world.reads(0), world.reads(1)];
            world.load(SECOND_NS, 1).await;
            let [others, slow] = [world.reads(0) - before[0], world.reads(1) - before[1]];
            assert!(slow * 20 < others, "{slow} to {others}");
            assert!(slow > 0, "now and then it is tried");
            assert!(world.array.is_online(MemberIndex(1)));
            world.set_delay(1, USUAL_NS);
            world.load(4 * SECOND_NS, 1).await;
            assert_eq!(world.slow_members(), [0; 0]);
            assert_eq!(world.array.take_health_news(), [HealthNews::NotSlow { member: 1 }]);
            let before = world.reads(1);
            world.load(SECOND_NS, 1).await;
            assert!(world.reads(1) - before > others / 20, "it is read again");
        });
    }
}

#[test]
fn members_that_are_all_slow_or_of_unlike_but_short_times_are_not_blamed() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid0] {
        with_world(level, 4, |world| async move {
            world.fill().await;
            world.set(|policy| policy.slow_action = SlowAction::Fail);
            // Two seconds of a full queue, for all.
            (0..4).for_each(|member| world.set_delay(member, 100 * USUAL_NS));
            world.load(20 * SECOND_NS, 2).await;
            let health = world.array.health(MemberIndex(0));
            let is_right = |p99: Nanos| (100..125).contains(&(p99 / USUAL_NS));
            assert!(is_right(health.reads.p99_ns) && is_right(health.writes.p99_ns), "{health:?}");
            // Ten times as long, but nothing anybody feels.
            (0..4).for_each(|member| world.set_delay(member, 40_000));
            world.set_delay(3, 400_000);
            world.load(4 * SECOND_NS, 2).await;
            // Twice as long.
            (0..4).for_each(|member| world.set_delay(member, USUAL_NS));
            world.set_delay(2, 2 * USUAL_NS);
            world.load(4 * SECOND_NS, 2).await;
            assert_eq!(world.slow_members(), [0; 0]);
            assert!((0..4).all(|member| world.array.is_online(MemberIndex(member))));
            assert!(world.array.take_health_news().is_empty());
        });
    }
}

#[test]
fn a_hiccup_is_no_slowness() {
    with_world(Level::Raid5, 4, |world| async move {
        world.fill().await;
        world.set(|policy| policy.slow_action = SlowAction::Fail);
        for _ in 0..4 {
            world.set_delay(0, 100 * USUAL_NS);
            world.load(SECOND_NS / 2, 1).await;
            world.set_delay(0, USUAL_NS);
            world.load(SECOND_NS, 1).await;
        }
        assert_eq!(world.slow_members(), [0; 0]);
    });
}

#[test]
fn with_parity_a_slow_member_is_read_as_before_unless_it_is_to_be_avoided() {
    with_world(Level::Raid6, 6, |world| async move {
        world.fill().await;
        world.set(|_| {});
        world.set_delay(2, 20 * USUAL_NS);
        world.load(3 * SECOND_NS, 0).await;
        assert_eq!(world.slow_members(), [2]);
        assert_eq!(world.array.counts().degraded_reads, 0);
        world.set(|policy| policy.slow_action = SlowAction::Avoid);
        let before = world.reads(2);
        world.load(2 * SECOND_NS, 0).await;
        let (computed, slow) = (world.array.counts().degraded_reads, world.reads(2) - before);
        assert!(computed > 20 * slow && slow > 0, "{computed} computed, {slow} read");
        // A medium error elsewhere is made good with what it has.
        let spoilt: Vec<u64> =
            (0..64).filter(|block| world.place(*block).0 != 2).take(12).collect();
        for block in spoilt {
            world.spoil(block, 1);
            assert_eq!(world.read(block).await, Ok(block as u8));
        }
        assert!((0..6).all(|member| world.array.is_online(MemberIndex(member))));
        let whole = world.array.read(Lba(0), Buf::new(256 << 10)).await.expect("read");
        assert!((0..64).all(|block| whole[block * 4096] == block as u8));
    });
}

#[test]
fn a_slow_member_is_failed_if_asked_for_and_redundancy_is_left_after_it() {
    let cases = [(Level::Raid6, 6, true), (Level::Raid5, 6, false), (Level::Raid1, 3, true)];
    for (level, members, is_failed) in cases {
        with_world(level, members, move |world| async move {
            world.fill().await;
            world.set(|policy| policy.slow_action = SlowAction::Fail);
            world.set_delay(1, 20 * USUAL_NS);
            world.load(4 * SECOND_NS, 2).await;
            assert_eq!(world.slow_members(), [1], "{level:?}");
            assert_eq!(world.array.is_online(MemberIndex(1)), !is_failed, "{level:?}");
            let news = world.array.take_health_news();
            let said = news.contains(&HealthNews::SlowFailed { member: 1 });
            assert_eq!(said, is_failed, "{news:?}");
            // A second one would leave none.
            world.set_delay(0, 100 * USUAL_NS);
            world.load(10 * SECOND_NS, 2).await;
            assert!(world.array.is_online(MemberIndex(0)), "{level:?}");
        });
    }
}
