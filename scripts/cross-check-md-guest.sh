#!/bin/bash
# The first process of the guest that scripts/cross-check-md.sh starts: makes every array with mdadm on loop
# devices over the files in FOLDER, has the requests written to it, stops it. "done" ends the log.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin MDADM_NO_UDEV=1

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null || true
mount -t tmpfs tmpfs /run
for word in $(cat /proc/cmdline); do
  case $word in
    CROSS_CHECK=*) cross_check=${word#CROSS_CHECK=} ;;
    FOLDER=*) folder=${word#FOLDER=} ;;
  esac
done

mkdir -p /run/arrays /run/modules/lib/modules /run/mdadm
mount -t hostfs -o "$folder" none /run/arrays
cd /run/arrays
exec >log 2>&1
# The kernel gives up when its first process ends, whatever for: the host looks at the log.
trap 'cd /; sync; umount -l /run/arrays; sync' EXIT

release=$(uname -r)
ln -s "/usr/lib/uml/modules/$release" "/run/modules/lib/modules/$release"
for module in loop raid0 raid1 raid10 raid456; do modprobe -d /run/modules "$module"; done
echo "Linux $release, $(mdadm --version 2>&1)"
echo 1000000 >/proc/sys/dev/raid/speed_limit_min
echo 1000000 >/proc/sys/dev/raid/speed_limit_max

make_array() { # name level layout chunk members start
  local devices=() options=(--run --level="$2" --metadata=1.2 --data-offset=1M) number
  for ((number = 0; number < $5; number++)); do
    losetup "/dev/loop$number" "$1/member$number"
    devices+=("/dev/loop$number")
  done
  [ "$2" = 1 ] || options+=(--chunk="$4")
  case $2 in 5 | 6 | 10) options+=(--layout="$3") ;; esac
  if [ "$2" != 0 ]; then
    options+=(--bitmap=none)
    [ "$6" = resync ] || options+=(--assume-clean)
  fi
  mdadm --create /dev/md0 "${options[@]}" --raid-devices="$5" "${devices[@]}" \
    >"$1/mdadm" 2>&1 </dev/null || { cat "$1/mdadm"; return 1; }
}

while read -r name level layout chunk members start; do
  make_array "$name" "$level" "$layout" "$chunk" "$members" "$start"
  if [ "$start" = resync ]; then
    while [ "$(cat /sys/block/md0/md/sync_action)" != idle ] ||
      [ "$(cat /sys/block/md0/md/degraded)" != 0 ]; do sleep 0.1; done
    dd if=/dev/md0 of="$name/before" bs=1M status=none
  fi
  "$cross_check" write "$name" /dev/md0
  mdadm --stop /dev/md0 >>"$name/mdadm" 2>&1
  for ((number = 0; number < members; number++)); do losetup -d "/dev/loop$number"; done
done <cases
echo "done"
