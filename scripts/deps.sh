#!/bin/bash
# usage: scripts/deps.sh build|packages|demo|test|bench|fuzz|cross-check-md|vm|cluster|database
# Makes sure that what a target needs is installed. Root on Debian or Ubuntu: installs it with apt.
# Otherwise prints the command to run and exits 1. When nothing is missing it takes a moment only.
set -euo pipefail

# What to look for, a command or a shared library, and the Debian package that brings it.
build=(cc:gcc)
fuzz=("${build[@]}" c++:g++)
demo=("${build[@]}" fio:fio)
test=("${demo[@]}"
  git:git nbdkit:nbdkit nbdinfo:libnbd-bin nbdcopy:libnbd-bin
  mkfs.xfs:xfsprogs mkfs.ext4:e2fsprogs fusermount3:fuse3 losetup:mount unshare:util-linux)
bench=("${test[@]}" libisal.so.2:libisal2 mkfs.btrfs:btrfs-progs)
database=("${demo[@]}" initdb:postgresql pgbench:postgresql
  mariadbd:mariadb-server mariadb:mariadb-client sysbench:sysbench)
cross_check_md=("${build[@]}" linux.uml:user-mode-linux mdadm:mdadm modprobe:kmod losetup:mount)
vm=("${build[@]}" qemu-system-x86_64:qemu-system-x86 nbdkit:nbdkit mmdebstrap:mmdebstrap
  fakeroot:fakeroot mke2fs:e2fsprogs setpriv:util-linux strip:binutils)

packages=("${demo[@]}" dpkg-shlibdeps:dpkg-dev strip:binutils rpmbuild:rpm lintian:lintian mandoc:mandoc
  mmdebstrap:mmdebstrap nbdinfo:libnbd-bin mke2fs:e2fsprogs losetup:mount unshare:util-linux
  ip:iproute2 pgrep:procps zsh:zsh fish:fish)
cluster=("${test[@]}" librbd.so.1:librbd1 ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd rbd:ceph-common)

# What a test leaves out where it cannot be had, in one line; on CI it must be there.
if [ -n "${CI:-}" ]; then test+=(chromium:chromium); fi

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  fuzz) wanted=("${fuzz[@]}") ;;
  packages) wanted=("${packages[@]}") ;;
  demo) wanted=("${demo[@]}") ;;
  test) wanted=("${test[@]}") ;;
  bench) wanted=("${bench[@]}") ;;
  cross-check-md) wanted=("${cross_check_md[@]}") ;;
  vm) wanted=("${vm[@]}") ;;
  cluster) wanted=("${cluster[@]}") ;;
  database) wanted=("${database[@]}") ;;
  *) sed -n 's/^# usage/usage/p' "$0" >&2; exit 2 ;;
esac
set=$1

# mkfs and losetup live where only root's PATH looks.
PATH="$PATH:/usr/sbin:/sbin"

if ! command -v cargo >/dev/null; then
  echo "cargo is missing: install Rust 1.95 or newer (https://rustup.rs), then run make again" >&2
  exit 1
fi
if [ "$set" = test ]; then
  for component in fmt clippy; do
    if ! cargo "$component" --version >/dev/null 2>&1; then
      echo "cargo $component is missing: run: rustup component add rustfmt clippy" >&2
      exit 1
    fi
  done
fi

found() {
  case "$1" in
    *.so.*) ldconfig -p | awk -v name="$1" '$1 == name { found = 1 } END { exit !found }' ;;
    # Debian keeps PostgreSQL's server programs in folders of their versions.
    initdb) command -v "$1" >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
    # Any of them shows a page.
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing() {
  local entry
  for entry in "${wanted[@]}"; do
    found "${entry%%:*}" >/dev/null || echo "${entry#*:}"
  done
  # A compiler without the C library's start files cannot link.
  if ! compgen -G '/usr/lib/*/crt1.o' >/dev/null && [ ! -e /usr/lib64/crt1.o ]; then
    echo libc6-dev
  fi
}

# apt-get, after whoever holds its locks: for ten minutes. apt waits by itself for the lock of dpkg alone.
apt() {
  local tries=120 said
  while ! said=$(DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@" 2>&1); do
    if [[ $said != *"ould not get lock"* && $said != *"nable to lock"* && $said != *"to acquire"*"lock"* ]] ||
      [ $((--tries)) -eq 0 ]; then
      echo "$said" >&2
      return 1
    fi
    [ $tries -ne 119 ] || echo "waiting for another apt-get to end"
    sleep 5
  done
}

# The browser in which reports are looked at.
browser() {
  if [ "$set" != test ] || found chromium >/dev/null; then return; fi
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing: chromium"
    apt update || true
    if apt install -y --no-install-recommends chromium && found chromium >/dev/null; then return; fi
  fi
  echo "chromium is missing and cannot be installed here: reports are not looked at in a browser" >&2
}

packages=$(missing | sort -u | tr '\n' ' ')
packages=${packages% }
if [ -z "$packages" ]; then
  browser
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "missing: $packages (Debian names): install them with your package manager," >&2
  echo "then run make again" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "missing: $packages" >&2
  echo "run: sudo apt-get update && sudo apt-get install -y $packages" >&2
  exit 1
fi

echo "installing: $packages"
apt update
# shellcheck disable=SC2086 # a list of words
apt install -y --no-install-recommends $packages

still=$(missing | sort -u | tr '\n' ' ')
if [ -n "$still" ]; then
  echo "still missing after apt-get install: $still" >&2
  exit 1
fi
browser
