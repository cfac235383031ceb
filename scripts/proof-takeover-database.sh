#!/bin/bash
# usage: scripts/proof-takeover-database.sh [PROGRAM]
# A PostgreSQL (synchronous_commit=on) on a file system on a write-back volume over a Ceph RBD image, with ordered=on.
# Its daemon is killed and its SSD destroyed while four clients commit; another state folder takes the image over. The
# database must start, and every commit must be there that the takeover says is on the image. As root; packages:
# scripts/deps.sh cluster and database. Says "skipped: ..." where something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"

voltier=$(realpath "${1:-target/debug/voltier}")
skip() { echo "skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "loop devices and mounts need root"
command -v ceph-mon >/dev/null || skip "no Ceph"
postgres=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | tail -n 1)" 2>/dev/null || true)
[ -x "$postgres/initdb" ] || skip "PostgreSQL is missing"

scratch=$(mktemp -d -t voltier-database.XXXXXX)
chmod 711 "$scratch"
conf=$scratch/ceph/ceph.conf
image=rbd:rbd/db@$conf
old() { "$voltier" --state "$scratch/old" "$@"; }
new() { "$voltier" --state "$scratch/new" "$@"; }
as_nobody() { (cd / && setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"); }
fail() { echo "FAILED: $*" >&2; exit 1; }
server=
stop_server() {
  [ -z "$server" ] || as_nobody "$postgres/pg_ctl" -D "$server" -m immediate -w stop >/dev/null 2>&1 || true
  server=
}
clean_up() {
  stop_server
  umount -q -l "$scratch/mnt" || true
  # A daemon ends the block device that its keeper still has.
  old start >/dev/null 2>&1 || true
  old delete db --no-flush >/dev/null 2>&1 || true
  old stop --now >/dev/null 2>&1 || true
  new stop --now >/dev/null 2>&1 || true
  scripts/ceph.sh "$scratch/ceph" down
  rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT

scripts/ceph.sh "$scratch/ceph" >/dev/null
rbd --conf "$conf" create rbd/db --size 1G
truncate -s 512M "$scratch/old.img" "$scratch/new.img"
mkdir -m 711 "$scratch/mnt" "$scratch/socket"
chown nobody "$scratch/socket"
start_server() {
  as_nobody "$postgres/pg_ctl" -D "$1" -l "$scratch/socket/log" -w -o "-k $scratch/socket -h ''" start >/dev/null ||
    { tail -n 20 "$scratch/socket/log" >&2; fail "the database does not start"; }
  server=$1
}
sql() { as_nobody psql -q -t -A -h "$scratch/socket" -d postgres "$@"; }

echo "== a database on a volume over an image"
old create db -s "$scratch/old.img" -p "$image" -t wb --set ordered=on --set max_unshipped=3s,64M --export loop \
  >/dev/null
old mount db "$scratch/mnt" --mkfs ext4 >/dev/null
install -d -o nobody -g nogroup -m 700 "$scratch/mnt/data"
as_nobody "$postgres/initdb" -D "$scratch/mnt/data" -A trust -U nobody >/dev/null
start_server "$scratch/mnt/data"
sql -c "show synchronous_commit" | grep -q on || fail "synchronous_commit is off"
sql -c "create table done (client int, number int, primary key (client, number))"

# Each line of a log is a commit that the client was told of, and when.
commits() {
  local client=$1 number=0
  while
    number=$((number + 1))
    echo "insert into done values ($client, $number) returning number;"
    [ "$number" -lt 1000000 ]
  do :; done | sql 2>/dev/null | while read -r number; do
    echo "$client $number $EPOCHREALTIME"
  done >"$scratch/log.$client" || true
}
clients=()
for client in 1 2 3 4; do
  commits "$client" &
  clients+=($!)
done
sleep 12
echo "== the SSD is destroyed, and the host gone"
kill -9 "$(cat "$scratch/old/daemon.pid")"
: >"$scratch/old.img"
umount -l "$scratch/mnt"
stop_server
wait "${clients[@]}" || true

echo "== another host takes the image over"
new takeover db -s "$scratch/new.img" -p "$image" -t wb --set ordered=on --export loop --force --json \
  >"$scratch/taken.json"
sed -n 's/.*"loss": "\(.*\)",*$/   \1/p' "$scratch/taken.json"
new mount db "$scratch/mnt" >/dev/null
start_server "$scratch/mnt/data"
sql -F ' ' -c "select client, number from done order by 1, 2" >"$scratch/found"
sql -c "select count(*) from pg_catalog.pg_class" >/dev/null
cat "$scratch"/log.* | python3 -c '
import json, sys
taken = json.load(open(sys.argv[1]))
complete = taken["report"]["complete_unix_ms"] / 1000
found = {tuple(map(int, line.split())) for line in open(sys.argv[2])}
told = [(int(client), int(number), float(at)) for client, number, at in map(str.split, sys.stdin)]
lost = [it for it in told if it[:2] not in found]
assert told, "no commit at all"
wrong = [it for it in lost if it[2] <= complete]
assert not wrong, f"{len(wrong)} commits are lost although the answer says that they are there: {wrong[0]}, {complete}"
for client in {it[0] for it in told}:
    numbers = sorted(number for who, number in found if who == client)
    assert numbers == list(range(1, len(numbers) + 1)), f"a hole in the commits of client {client}"
last = max(it[2] for it in told)
first = min((it[2] for it in lost), default=last)
print(f"   {len(told)} commits told, {len(lost)} lost, all of the last {last - first:.2f} s")
print(f"   said: all of the last {last - complete:.2f} s")
' "$scratch/taken.json" "$scratch/found"
echo "1 passed, 0 failed"
