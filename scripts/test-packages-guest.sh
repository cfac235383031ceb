#!/bin/bash
# usage: scripts/test-packages-guest.sh by-hand|systemd|rpm|container ROOT VERSION
# One case of scripts/test-packages.sh, in a fresh Debian at ROOT, in namespaces of its own for mounts, processes,
# network and control groups. ROOT/packages has the packages of VERSION and of a later one.
set -euo pipefail

case=$1 root=$2 version=$3
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() { echo "FAILED: $*" >&2; exit 1; }

# Nodes of its own: what the daemon and systemd make under /dev is not the host's.
make_mounts() {
  local node
  mount -t proc proc /proc
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for node in null zero full random urandom tty fuse loop-control; do cp -a "/dev/$node" "$root/dev/"; done
  for ((node = 0; node < 128; node++)); do mknod "$root/dev/loop$node" b 7 "$node"; done
  mkdir "$root/dev/shm"
  ln -s /proc/self/fd "$root/dev/fd"
}

# Runs a script in the Debian: by itself, or beside its systemd.
systemd=
inside() {
  if [ -n "$systemd" ]; then
    nsenter --target "$systemd" --mount --pid --cgroup --root --wd /bin/bash -euo pipefail -c "$1"
  else
    chroot "$root" /bin/bash -euo pipefail -c "$1"
  fi
}

# Loop devices outlive these namespaces.
clean_up() {
  inside 'umount /srv/files; voltier stop --now' >/dev/null 2>&1 || true
  [ -z "$systemd" ] || kill -KILL "$systemd"
}

# Every file but those of dpkg, of logs and of the test.
listing() {
  (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/cache -o -path ./var/log -o -path ./packages \
    -o -path ./tmp -o -path ./srv -o -path ./var/lib/systemd -o -path ./var/tmp \) -prune \
    -o -not -type d -print | sort)
}

# The distribution's own installer: dpkg, or rpm from outside of a Debian, which has none.
install_packages() { # VERSION
  if [ "$case" = rpm ]; then
    rpm --root "$root" -U --nodeps --noplugins "$root"/packages/voltier{,-lab}-"$1"-1.*.rpm
  else
    inside "dpkg -i /packages/voltier_$1-1_*.deb /packages/voltier-lab_$1-1_*.deb"
  fi
}

remove_package() { # NAME
  if [ "$case" = rpm ]; then
    rpm --root "$root" -e --noplugins "$1"
  else
    inside "dpkg -r $1"
  fi
}

is_installed() {
  if [ "$case" = rpm ]; then
    rpm --root "$root" -q voltier >/dev/null
  else
    [ "$(inside "dpkg-query -W -f '\${db:Status-Status}' voltier")" = installed ]
  fi
}

# Two commands to a mounted file system, as README.md has them.
make_volume() {
  inside 'cd /srv; truncate -s 256M disk.img; truncate -s 64M ssd.img; mkdir -p files
    voltier create -s /srv/ssd.img -p /srv/disk.img -t wb fast
    voltier mount fast /srv/files --mkfs ext4'
}

# The daemon's process: its number, and the file that it runs, which is shown as deleted when it was replaced.
daemon() {
  # shellcheck disable=SC2016 # expanded inside
  inside 'pid=$(cat /var/lib/voltier/daemon.pid); echo "$pid $(readlink /proc/$pid/exe)"'
}

# Writes and verifies while the package of the later version is installed.
upgrade_under_load() {
  local before after load
  before=$(daemon)
  inside 'cd /srv; fio --name=load --directory=/srv/files --size=48M --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio \
    --direct=1 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --time_based --runtime=20 \
    --output=/srv/fio.txt' &
  load=$!
  sleep 5
  install_packages "$version+later"
  kill -0 "$load" 2>/dev/null || fail "the load ended before the upgrade did"
  wait "$load" || { cat "$root/srv/fio.txt"; fail "fio found something"; }
  grep -E 'err=|IOPS' "$root/srv/fio.txt"
  after=$(daemon)
  [ "$before" = "$after" ] || fail "the daemon was $before, and is $after"
  [[ $after == *" /usr/bin/voltier" ]] || fail "the daemon is the program of before: $after"
  inside 'touch /srv/files/alive; voltier show fast >/dev/null'
}

# A daemon that cannot be taken over serves on, and the package is installed all the same.
upgrade_that_is_refused() {
  local said
  inside 'voltier create -p mem:16M --export none m >/dev/null'
  said=$(install_packages "$version+later" 2>&1) || fail "the upgrade failed: $said"
  grep -B 1 'still the program of before' <<<"$said" || fail "the upgrade says: $said"
  inside 'touch /srv/files/alive; voltier delete m'
}

# A removal while the volume is mounted changes nothing; unmounted, it stops the daemon.
remove() {
  local said
  remove_package voltier-lab
  said=$(remove_package voltier 2>&1) && fail "a package in use was removed"
  grep -q 'mounted on /srv/files' <<<"$said" || fail "the removal says: $said"
  is_installed || fail "the package is gone after a refused removal"
  inside 'touch /srv/files/alive; voltier show fast | grep -q running'
  echo "refused: $(grep 'mounted on' <<<"$said")"
  inside 'cp /srv/files/load.0.0 /srv/copy; umount /srv/files'
  remove_package voltier
  [ ! -e "$root/usr/bin/voltier" ] || fail "the program is still there"
  [ ! -s "$root/var/lib/voltier/daemon.pid" ] || fail "the daemon was not stopped"
  [ -e "$root/var/lib/voltier/registry.json" ] || fail "a removal took the registry away"
}

# Volumes on record survive a purge; without them nothing of the package is left, and the disk is plain.
purge() {
  local said
  said=$(inside 'dpkg -P voltier voltier-lab' 2>&1)
  grep '/var/lib/voltier is kept' <<<"$said" || fail "the purge says: $said"
  inside "dpkg -i /packages/voltier_$version+later-1_*.deb
    voltier start >/dev/null; voltier show fast | grep -q running; voltier delete fast; dpkg -P voltier"
  listing >"$root/srv/after"
  diff "$root/srv/before" "$root/srv/after" || fail "the purge left these behind"
  inside 'e2fsck -fn /srv/disk.img >/dev/null 2>&1; mount -o loop,ro /srv/disk.img /srv/files
    cmp /srv/files/load.0.0 /srv/copy; umount /srv/files'
}

install_first() {
  listing >"$root/srv/before"
  install_packages "$version"
}

# Without a service manager: commands start the daemon.
by_hand() {
  make_mounts
  install_first
  make_volume
  upgrade_under_load
  upgrade_that_is_refused
  remove
  purge
}

# The scripts of the RPM, without a service manager. A removal is all: rpm has no purge.
rpm_in_debian() {
  make_mounts
  rpm --root "$root" --initdb
  install_packages "$version"
  make_volume
  upgrade_under_load
  remove
}

# systemd as the first process of the Debian, with what it needs of units alone.
boot() {
  local unit
  for unit in systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket getty.target \
    console-getty.service systemd-timesyncd.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer fstrim.timer systemd-logind.service systemd-networkd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
  done
  echo voltier-test >"$root/etc/hostname"
  : >"$root/etc/machine-id"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  env -i container=test PATH="$PATH" unshare --pid --fork --kill-child --mount --mount-proc="$root/proc" \
    chroot "$root" /lib/systemd/systemd </dev/null >"$root/srv/console" 2>&1 &
  local parent=$! tries=0
  until systemd=$(pgrep -P "$parent") &&
    inside 'systemctl is-system-running || true' 2>/dev/null | grep -qx 'running\|degraded'; do
    [ $((++tries)) -lt 60 ] || { cat "$root/srv/console"; fail "systemd does not come up"; }
    sleep 1
  done
}

# A service of systemd, enabled and started by the package.
under_systemd() {
  make_mounts
  boot
  install_first
  inside 'systemctl is-active voltier; systemctl is-enabled voltier'
  make_volume
  upgrade_under_load
  inside 'systemctl is-active voltier; journalctl -q -u voltier --no-pager -o cat | tail -n 20'
  remove
  purge
}

# What the recipe does, line by line, and what runs in its container: no device, and a user without rights.
container() {
  local word rest user=root settings=() daemon tries=0
  make_mounts
  rm "$root/dev/fuse" "$root"/dev/loop*
  ip link set lo up
  cp "$root/packages/voltier_$version-1_"*.deb "$root/tmp/"
  while read -r word rest; do
    case $word in
      RUN) inside "$rest" ;;
      USER) user=$rest ;;
      ENV) read -r -a settings <<<"$rest" ;;
    esac
  done <"$root/packages/Containerfile"
  inside "install -d -o $user /drives; ! ls /tmp/voltier_*.deb 2>/dev/null"
  local as_user=(chroot --userspec="$user:$user" "$root" env -i PATH="$PATH" "${settings[@]}")
  "${as_user[@]}" truncate -s 64M /drives/disk.img
  "${as_user[@]}" truncate -s 32M /drives/ssd.img
  "${as_user[@]}" voltier daemon &
  daemon=$!
  until "${as_user[@]}" voltier show 2>/dev/null; do
    [ $((++tries)) -lt 100 ] || fail "the daemon does not serve"
    sleep 0.2
  done
  "${as_user[@]}" voltier create -s /drives/ssd.img -p /drives/disk.img --export none v
  "${as_user[@]}" voltier export v --nbd tcp:0.0.0.0 --insecure
  inside 'nbdinfo nbd://127.0.0.1/v | grep export-size
    head -c 8M /dev/urandom >/srv/data; nbdcopy --flush /srv/data nbd://127.0.0.1/v
    nbdcopy nbd://127.0.0.1/v /srv/copy; cmp -n 8388608 /srv/data /srv/copy'
  "${as_user[@]}" voltier create -p /drives/other.img w 2>/dev/null && fail "a volume on a disk that is not there"
  kill -TERM "$daemon"
  wait "$daemon" || fail "the daemon ended with $?"
}

trap clean_up EXIT
case $case in
  by-hand) by_hand ;;
  systemd) under_systemd ;;
  rpm) rpm_in_debian ;;
  container) container ;;
esac
