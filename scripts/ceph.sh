#!/bin/bash
# usage: scripts/ceph.sh FOLDER [down]
# Starts a small Ceph on the loopback address, or on VOLTIER_CEPH_ADDRESS (its monitor on VOLTIER_CEPH_MON_ADDRESS), in
# a folder: one monitor, one manager, one OSD, the pool `rbd` with one copy. It ends, with `down`, the processes that it
# started, by the numbers in FOLDER/pids, and nothing else. Clients name FOLDER/ceph.conf. Packages: scripts/deps.sh
# cluster.
set -euo pipefail

folder=$(realpath -m "${1:?usage: scripts/ceph.sh FOLDER [down]}")
conf=$folder/ceph.conf
address=${VOLTIER_CEPH_ADDRESS:-127.0.0.1}
mon_address=${VOLTIER_CEPH_MON_ADDRESS:-$address}

ceph() { command ceph --conf "$conf" --connect-timeout 20 "$@"; }

down() {
  [ -f "$folder/pids" ] || return 0
  local pid
  # Last begun, first ended: the OSD tells the monitor that it goes.
  while read -r pid; do
    # A number of ours that another process has by now is not ours.
    if grep -qsF "$folder" "/proc/$pid/cmdline"; then
      kill "$pid" 2>/dev/null || true
      for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
      kill -9 "$pid" 2>/dev/null || true
    fi
  done < <(tac "$folder/pids")
  rm -f "$folder/pids"
}

if [ "${2:-up}" = down ]; then
  down
  exit 0
fi

mkdir -p "$folder"
[ ! -e "$folder/pids" ] || { echo "$folder holds a cluster already; end it: $0 $folder down" >&2; exit 1; }
free_port() {
  python3 -c 'import socket, sys; s = socket.socket(); s.bind((sys.argv[1], 0)); print(s.getsockname()[1])' "$1"
}
fsid=$(cat /proc/sys/kernel/random/uuid)
mon=$mon_address:$(free_port "$mon_address")
cat >"$conf" <<END
[global]
fsid = $fsid
mon host = [v2:$mon]
ms bind msgr1 = false
public addr = $address
keyring = $folder/keyring
run dir = $folder
log file = $folder/\$name.log
admin socket = $folder/\$name.\$pid.asok
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
mon allow pool delete = true
mon data = $folder/mon
mon data avail warn = 1
mon data avail crit = 1
mgr data = $folder/mgr
osd data = $folder/osd
osd journal = $folder/osd/journal
osd objectstore = ${VOLTIER_CEPH_STORE:-memstore}
memstore device bytes = 4G
bluestore block size = 8G
mgr modules =
mgr initial modules =
[client]
log file =
admin socket =
END

ceph-authtool --create-keyring "$folder/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool "$folder/keyring" --gen-key -n client.admin \
  --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
mkdir -p "$folder/mon" "$folder/mgr" "$folder/osd"
monmaptool --create --fsid "$fsid" --addv a "[v2:$mon]" "$folder/monmap" >/dev/null 2>&1
ceph-mon --conf "$conf" --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring"

begin() {
  "$@" >>"$folder/out.log" 2>&1 </dev/null &
  echo $! >>"$folder/pids"
}
trap 'down' ERR
begin ceph-mon --conf "$conf" -f -i a
ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' >>"$folder/keyring"
begin ceph-mgr --conf "$conf" -f -i x
osd=$(cat /proc/sys/kernel/random/uuid)
ceph osd new "$osd" >/dev/null
ceph auth get-or-create osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' >>"$folder/keyring"
ceph-osd --conf "$conf" --mkfs -i 0 --osd-uuid "$osd" >>"$folder/out.log" 2>&1
begin ceph-osd --conf "$conf" -f -i 0
for _ in $(seq 300); do
  ceph osd stat | grep -q '1 up' && break
  sleep 0.1
done
ceph osd pool create rbd 8 >/dev/null
ceph osd pool set rbd size 1 --yes-i-really-mean-it >/dev/null 2>&1 || true
rbd --conf "$conf" pool init rbd
trap - ERR
echo "$conf"
