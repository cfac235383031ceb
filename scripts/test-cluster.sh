#!/bin/bash
# usage: scripts/test-cluster.sh [PROGRAM]
# What `make test-cluster` runs: RBD images of a real Ceph on the loopback address as disks. A daemon that is killed
# comes back, an image that others have is refused, a host whose lock is broken writes nothing more, an OSD that does
# not answer is a disk that does not. As root also: hosts that are cut off in the middle of writes, in a network
# namespace of their own, and taken over VOLTIER_TAKEOVERS times (2 unless set). Ends only what it started.
set -euo pipefail
cd "$(dirname "$0")/.."

voltier=$(realpath "${1:-target/debug/voltier}")
scratch=$(mktemp -d -t voltier-cluster.XXXXXX)
state=$scratch/state
conf=$scratch/ceph/ceph.conf
export VOLTIER_EXPORT=none VOLTIER_DEVICE_WAIT=0 VOLTIER_STOP_WAIT=0

v() { "$voltier" --state "$state" "$@"; }
other() { "$voltier" --state "$scratch/other" "$@"; }
# The host that is cut off: its name is that of the namespace and of the link to it.
far=vlt$$
away() { ip netns exec "$far" "$voltier" --state "$scratch/away" "$@"; }
rbd() { command rbd --conf "$conf" "$@"; }
step() { echo "== $*"; }
fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$state/daemon.log" >&2 || true
  exit 1
}
refused() {
  local words=$1
  shift
  local said
  if said=$(v "$@" 2>&1); then fail "voltier $* was not refused"; fi
  [[ $said == *"$words"* ]] || fail "voltier $* said: $said"
  echo "   refused: ${said##*: }"
}
is_running() { v show "$1" 2>/dev/null | grep -q '^state *running'; }
await() {
  for _ in $(seq 120); do
    if "$@"; then return 0; fi
    sleep 0.5
  done
  fail "not in time: $*"
}
daemon() { cat "$state/daemon.pid"; }
end_all() {
  set +e
  v stop >/dev/null 2>&1
  other stop >/dev/null 2>&1
  if [ -n "${far_is_there:-}" ]; then
    away stop >/dev/null 2>&1
    ip netns del "$far"
    ip link del "$far" 2>/dev/null
  fi
  scripts/ceph.sh "$scratch/ceph" down
  rm -rf "$scratch"
}
trap end_all EXIT

address=127.0.0.1
mon_address=127.0.0.1
if [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && ip netns add "$far" 2>/dev/null; then
  far_is_there=yes
  # Addresses for tests of networks (RFC 2544), four for each link.
  net=198.18.$((RANDOM % 256))
  at=$((RANDOM % 64 * 4))
  address=$net.$((at + 1))
  # Of its own, so that a host may reach the OSD before it hears anything from the monitor.
  mon_address=198.19.$((RANDOM % 256)).$((RANDOM % 254 + 1))
  ip link add "$far" type veth peer name far netns "$far"
  ip address add "$address/30" dev "$far"
  ip address add "$mon_address/32" dev "$far"
  ip link set "$far" up
  ip -n "$far" address add "$net.$((at + 2))/30" dev far
  ip -n "$far" link set far up
  ip -n "$far" link set lo up
  ip -n "$far" route add "$mon_address/32" via "$address"
fi

step "a Ceph of one monitor, one manager and one OSD, at $address"
VOLTIER_CEPH_ADDRESS=$address VOLTIER_CEPH_MON_ADDRESS=$mon_address scripts/ceph.sh "$scratch/ceph" >/dev/null
truncate -s 128M "$scratch/ssd.img"
rbd create rbd/a --size 256M
rbd create rbd/b --size 64M
rbd create rbd/nolock --size 64M --image-feature layering
a=rbd:rbd/a@$conf
uri="nbd+unix:///v?socket=$state/v.nbd.sock"

step "refusals"
refused "no image" create w -p "rbd:rbd/none@$conf"
refused "no pool" create w -p "rbd:none/none@$conf"
refused "lacks the feature exclusive-lock" create w -p "rbd:rbd/nolock@$conf"
refused "a snapshot takes no writes" create w -p rbd:rbd/a@snap

step "an image behind a cache takes writes, and is written back"
v create v -s "$scratch/ssd.img" -p "$a" -t wb >/dev/null
v export v --nbd >/dev/null
write() {
  fio --name=w --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --size=64M --iodepth=16 --number_ios=4000 \
    --randseed="$1" --verify=crc32c --do_verify=1 --minimal >/dev/null || fail "fio"
}
content() { nbdcopy "$uri" - | sha256sum; }
write 1
v flush v >/dev/null 2>&1
[ "$(content)" = "$(rbd export rbd/a - --no-progress | sha256sum)" ] || fail "the image differs after a flush"

step "kill -9: the next daemon breaks the lock of the dead one, and nothing is lost"
write 2
before=$(content)
kill -9 "$(daemon)"
v start v >/dev/null
is_running v || fail "v does not run"
[ "$(content)" = "$before" ] || fail "content was lost"

step "another host that holds nothing but the wish is refused by the cluster"
if rbd bench --io-type write --io-total 4096 --io-size 4096 rbd/a >/dev/null 2>&1; then
  fail "a second writer was let in"
fi

step "an OSD that stands still is a disk that does not answer"
v set v deadline=2s >/dev/null
osd=$(tail -n 1 "$scratch/ceph/pids")
write 3
kill -STOP "$osd"
refused "has not answered" flush v
kill -CONT "$osd"
await v flush v >/dev/null 2>&1
v set v deadline=30s >/dev/null

step "a host whose lock is broken writes nothing more"
write 4
locker=$(rbd lock ls rbd/a --format json | sed 's/.*"locker":"\([^"]*\)".*/\1/')
id=$(rbd lock ls rbd/a --format json | sed 's/.*"id":"\([^"]*\)".*/\1/')
rbd lock rm rbd/a "$id" "$locker"
rbd bench --io-type write --io-total 4M --io-size 4096 rbd/a >/dev/null || fail "the new host may not write"
after=$(rbd export rbd/a - --no-progress | sha256sum)
await grep -q 'the lock is lost' "$state/daemon.log"
for rw in write read; do
  if fio --name=w --ioengine=nbd --uri="$uri" --rw=$rw --bs=4k --size=1M --minimal >/dev/null 2>&1; then
    fail "a $rw was served after the lock was lost"
  fi
done
v show v | grep -q 'the lock is lost' || fail "show says nothing of the lock"
if v flush v >/dev/null 2>&1; then fail "dirty lines were called written back"; fi
[ "$(rbd export rbd/a - --no-progress | sha256sum)" = "$after" ] || fail "the old host wrote over the new one"
kill -9 "$(daemon)"

step "an image that another host used meanwhile is not written to, until the user says so"
await_free() { ! rbd status rbd/a | grep -q watcher=; }
await await_free
refused_other() { ! said=$(other create "$1" -p "$2" 2>&1) && [[ $said == *"$3"* ]]; }
refused_other w "$a" "may lack what v on" || fail "a volume was made of half the data: ${said:-}"
other takeover w -p "$a" --force >/dev/null
other export w --nbd >/dev/null
fio --name=w --ioengine=nbd --uri="nbd+unix:///w?socket=$scratch/other/w.nbd.sock" --rw=write --bs=4k --size=1M \
  --minimal >/dev/null || fail "fio"
other delete w >/dev/null
other stop >/dev/null
after=$(rbd export rbd/a - --no-progress | sha256sum)
v start >/dev/null 2>&1 || true
shown=$(v show v 2>&1 || true)
[[ $shown == *"was used by another host ($(uname -n))"* ]] || fail "$shown"
[ "$(rbd export rbd/a - --no-progress | sha256sum)" = "$after" ] || fail "the old host wrote over the new one"
v set v "hdd=$a" >/dev/null
is_running v || fail "v does not run"
v stop >/dev/null

step "an image that was made again is not the one on record"
await await_free
rbd rm rbd/a --no-progress
rbd create rbd/a --size 256M
v start >/dev/null 2>&1 || true
shown=$(v show v 2>&1 || true)
[[ $shown == *"another image of this name"* ]] || fail "$shown"

if [ -z "${far_is_there:-}" ]; then
  echo "left out: a host that is cut off (it takes root and network namespaces)"
  echo "1 passed, 0 failed"
  exit 0
fi
step "a host that is cut off while it writes is pushed off, and what it sends late is refused"
rbd create rbd/c --size 64M
c=rbd:rbd/c@$conf
truncate -s 128M "$scratch/away.img"
away create v -s "$scratch/away.img" -p "$c" -t wb >/dev/null
away export v --nbd >/dev/null
away_uri="nbd+unix:///v?socket=$scratch/away/v.nbd.sock"
on_away() {
  fio --name=w --ioengine=nbd --uri="$away_uri" --rw=randwrite --bs=4k --size=64M --iodepth=16 --minimal "$@" >/dev/null
}
on_away --number_ios=8000 || fail "fio"
# Written back while the link goes down, so that writes of the old host are on their way.
away flush v >/dev/null 2>&1 &
flushing=$!
on_away --time_based --runtime=2 || true &
writing=$!
sleep 0.3
ip link set "$far" down
old=$(rbd lock ls rbd/c --format json | sed 's/.*"address":"\([^"]*\)".*/\1/')
refused_other n "$c" "$old" || fail "the new host was let in while the old one may be alive: ${said:-}"
echo "   refused: ${said##*: }"
locker=$(rbd lock ls rbd/c --format json | sed 's/.*"locker":"\([^"]*\)".*/\1/')
id=$(rbd lock ls rbd/c --format json | sed 's/.*"id":"\([^"]*\)".*/\1/')
rbd lock rm rbd/c "$id" "$locker"
is_taken() { other takeover n -p "$c" --force >/dev/null 2>&1; }
await is_taken
ceph --conf "$conf" osd blocklist ls 2>/dev/null | grep -qF "$old" || fail "the cluster does not refuse $old"
other export n --nbd >/dev/null
fio --name=n --ioengine=nbd --uri="nbd+unix:///n?socket=$scratch/other/n.nbd.sock" --rw=write --bs=64k --size=64M \
  --minimal >/dev/null || fail "the new host may not write"
after=$(rbd export rbd/c - --no-progress | sha256sum)
wait "$writing" || true
# At this level the OSD tells which requests it refuses.
ceph --conf "$conf" tell osd.0 config set debug_osd 10 >/dev/null 2>&1
ip link set "$far" up
shows_loss() { away show v 2>&1 | grep -q 'the lock is lost: another host has broken it'; }
await shows_loss
echo "   $(away show v | sed -n 's/^problem *//p')"
# None, where the old host hears of the refusal from the monitor first.
late=$(grep -c "do_op .* is blocklisted" "$scratch/ceph/osd.0.log" || true)
echo "   requests that reached the OSD and were refused: $late"
if on_away --number_ios=100 2>/dev/null; then fail "the old host serves on"; fi
wait "$flushing" && fail "dirty lines were called written back"
[ "$(rbd export rbd/c - --no-progress | sha256sum)" = "$after" ] || fail "a late write of the old host was carried out"

other delete n >/dev/null
away delete v --no-flush >/dev/null
refusals() { grep -c "do_op .* is blocklisted" "$scratch/ceph/osd.0.log" || true; }
hears_it() { [ "$(refusals)" -gt "$late" ]; }
# One host is cut off in the middle of writes, another one takes its volume over and says what is lost.
takeover() {
  local image=rbd/t$1 c=rbd:rbd/t$1@$conf force=() before
  # In turn: one that is known to be silent, and one that is not waited for.
  [ $(($1 % 2)) -eq 1 ] || force=(--force)
  rbd create "$image" --size 8M
  rm -f "$scratch/away.img" "$scratch/here.img"
  truncate -s 128M "$scratch/away.img" "$scratch/here.img"
  away create v -s "$scratch/away.img" -p "$c" -t wb >/dev/null
  away set v ordered=on max_unshipped=2s,16M >/dev/null
  away export v --nbd >/dev/null
  python3 scripts/takeover.py write "$scratch/away/v.nbd.sock" v "$scratch/log" &
  writing=$!
  sleep "1.$((RANDOM % 10))"
  ip link set "$far" down
  sleep "0.$((RANDOM % 10))"
  other takeover v -s "$scratch/here.img" -p "$c" -t wb "${force[@]}" --json >"$scratch/taken.json" ||
    fail "no takeover"
  before=$(rbd export "$image" - --no-progress | tee "$scratch/image" | sha256sum)
  late=$(refusals)
  ip -n "$far" route replace blackhole "$mon_address/32"
  ip link set "$far" up
  await hears_it
  ip -n "$far" route del "$mon_address/32"
  ip -n "$far" route add "$mon_address/32" via "$address"
  await shows_loss
  wait "$writing" || fail "the client"
  [ "$(rbd export "$image" - --no-progress | sha256sum)" = "$before" ] ||
    fail "the old host wrote after it was pushed off"
  python3 scripts/takeover.py check "$scratch/log" "$scratch/image" "$scratch/taken.json"
  echo "   $(($(refusals) - late)) late requests refused by the OSD"
  sed -n 's/.*"loss": "\(.*\)",*$/   said: \1/p' "$scratch/taken.json"
  # The SSD of the old host has all that was acknowledged.
  away stop v --now >/dev/null 2>&1 || true
  away set v "hdd=$scratch/image" >/dev/null
  away start v >/dev/null
  nbdcopy "nbd+unix:///v?socket=$scratch/away/v.nbd.sock" - >"$scratch/whole"
  python3 scripts/takeover.py kept "$scratch/log" "$scratch/whole"
  away delete v --no-flush >/dev/null
  other delete v >/dev/null
}
step "hosts that are cut off while they write are taken over, and no more is lost than the new host says"
for round in $(seq "${VOLTIER_TAKEOVERS:-2}"); do takeover "$round"; done
ceph --conf "$conf" tell osd.0 config set debug_osd 0 >/dev/null 2>&1

echo "1 passed, 0 failed"
