#!/bin/bash
# usage: scripts/proof-filesystems.sh VOLTIER [ext4|xfs]...
# A file system on a loop device over the FUSE file of a write-back volume, used as people use one:
# a git clone and a PostgreSQL database with pgbench. Then the cache is deleted, and the plain HDD
# file must be clean to fsck and hold every byte. Says "skipped: ..." where something is missing.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

voltier=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- ext4 xfs

skip() { echo "skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "loop devices and mounts need root"
[ -c /dev/fuse ] || skip "no /dev/fuse"
[ -c /dev/loop-control ] || skip "no loop devices"

base=$(mktemp -d)
chmod 711 "$base"
export VOLTIER_STATE="$base/state"
server=

# Everything that was begun is taken apart again, in whatever state it is.
clean_up() {
  [ -z "$server" ] || as_nobody "$postgres/pg_ctl" -D "$server" -m immediate stop >/dev/null || true
  umount -q "$base/mnt" || true
  "$voltier" stop --now >/dev/null 2>&1 || true
  rm -rf --one-file-system "$base"
}
trap clean_up EXIT

as_nobody() { (cd / && setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"); }

find_postgres() {
  local bin
  for bin in /usr/lib/postgresql/*/bin /usr/local/bin /usr/bin; do
    [ -x "$bin/initdb" ] && [ -x "$bin/pgbench" ] && { echo "$bin"; return; }
  done
}
postgres=$(find_postgres)

use_git() {
  command -v git >/dev/null || { echo "skipped: git is missing"; return; }
  local repository="$base/repository"
  if [ ! -d "$repository" ]; then
    git init -q "$repository"
    for number in {1..300}; do
      head -c $((number * 97)) /dev/urandom | base64 >"$repository/file$number"
    done
    git -C "$repository" add .
    git -C "$repository" -c user.name=proof -c user.email=proof@localhost commit -qm proof
  fi
  git clone -q --no-hardlinks "$repository" "$1/clone"
  git -C "$1/clone" fsck --full --strict 2>&1
}

use_postgres() {
  [ -n "$postgres" ] || { echo "skipped: PostgreSQL is missing"; return; }
  mkdir "$1/database"
  chown nobody:nogroup "$1/database"
  as_nobody "$postgres/initdb" -D "$1/database" -A trust -U proof --no-instructions >/dev/null
  server="$1/database"
  as_nobody "$postgres/pg_ctl" -D "$server" -w -l "$server/log" \
    -o "-c listen_addresses= -c unix_socket_directories=$server" start >/dev/null
  as_nobody "$postgres/pgbench" -h "$server" -U proof -i -q -s 2 postgres 2>&1 | tail -1
  as_nobody "$postgres/pgbench" -h "$server" -U proof -c 4 -T "${PROOF_SECONDS:-5}" postgres 2>&1 |
    grep -E 'actually processed|tps|failed'
  as_nobody "$postgres/pg_ctl" -D "$server" -m fast stop >/dev/null
  server=
  # Page checksums are off by default: enabled now, they are verified on the plain file.
  as_nobody "$postgres/pg_checksums" -D "$1/database" --enable >/dev/null
}

sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

check_fs() {
  case $1 in
    ext4) e2fsck -fn "$2" 2>&1 | tail -1 ;;
    xfs) xfs_repair -n "$2" >/dev/null 2>&1 && echo "xfs_repair -n: clean" ;;
  esac
}

prove() {
  local fs=$1
  command -v "mkfs.$fs" >/dev/null || { echo "skipped: mkfs.$fs is missing"; return; }
  echo "== $fs"
  mkdir -p "$base/mnt"
  truncate -s 1G "$base/hdd"
  truncate -s 256M "$base/ssd"
  "$voltier" create -s "$base/ssd" -p "$base/hdd" -t wb --export loop vol || skip "no block devices here"
  "$voltier" mount vol "$base/mnt" --mkfs "$fs"
  chmod 755 "$base/mnt"
  use_git "$base/mnt"
  use_postgres "$base/mnt"
  sums "$base/mnt" >"$base/sums"
  umount "$base/mnt"
  "$voltier" show vol | grep -E '^(lines|hit rate|writes)'
  "$voltier" delete vol
  [ ! -e "$base/state/dev/vol" ] && [ ! -e "$base/state/vol.device" ] ||
    { echo "the block device was left behind" >&2; exit 1; }

  check_fs "$fs" "$base/hdd"
  mount -o loop,ro "$base/hdd" "$base/mnt"
  sums "$base/mnt" | cmp - "$base/sums"
  echo "$(wc -l <"$base/sums") files are on the plain HDD, byte for byte"
  [ ! -d "$base/mnt/clone" ] || git -c safe.directory='*' -C "$base/mnt/clone" fsck --full --strict
  [ ! -d "$base/mnt/database" ] || "$postgres/pg_checksums" -D "$base/mnt/database" --check |
    grep -E 'Blocks scanned|Bad checksums'
  umount "$base/mnt"
  rm "$base/hdd" "$base/ssd"
}

for fs in "$@"; do prove "$fs"; done
echo "proved: $*"
