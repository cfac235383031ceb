#!/bin/bash
# usage: scripts/test-packages.sh
# The packages of `make deb` and `make rpm` as users have them: checked by the distributions' own tools, installed into
# a fresh Debian, upgraded while fio writes and verifies, removed and purged. Then the same under systemd, and what the
# container recipe does. Root is needed for chroot, loop devices and FUSE. The fresh Debian is made once and kept in
# target/packages-root; VM_SUITE names another one than the host's.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" -eq 0 ] || { echo "test-packages needs root: chroot, loop devices, FUSE" >&2; exit 1; }
target=$PWD/${CARGO_TARGET_DIR:-target}
packages=$target/packages
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(dpkg --print-architecture)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

say "a package of a later version"
VERSION=$version+later scripts/packages.sh deb >/dev/null
VERSION=$version+later scripts/packages.sh rpm >/dev/null
first=("$packages/voltier_$version-1_$arch.deb" "$packages/voltier-lab_$version-1_$arch.deb")
later=("$packages/voltier_$version+later-1_$arch.deb" "$packages/voltier-lab_$version+later-1_$arch.deb")

say "lintian"
lintian --allow-root --fail-on error,warning "${first[@]}"

say "manual pages and completions"
for deb in "${first[@]}"; do dpkg-deb -x "$deb" "$scratch/files"; done
gunzip "$scratch"/files/usr/share/man/man1/*.gz
mandoc -T lint -W warning "$scratch"/files/usr/share/man/man1/*.1
for verb in create array-create lab-run completions; do
  mandoc "$scratch/files/usr/share/man/man1/voltier-$verb.1" | grep "voltier-$verb" >/dev/null ||
    fail "no page of $verb"
done
bash -n "$scratch/files/usr/share/bash-completion/completions/voltier"
zsh -n "$scratch/files/usr/share/zsh/vendor-completions/_voltier"
fish -n "$scratch/files/usr/share/fish/vendor_completions.d/voltier.fish"
# The words of bash for `voltier array cr` and `voltier lab run --siz`.
# shellcheck disable=SC2016 # expanded by the other shell
completed=$(bash -c '. "$1"
  COMP_WORDS=(voltier array cr) COMP_CWORD=2; _voltier voltier cr array; echo "${COMPREPLY[@]}"
  COMP_WORDS=(voltier lab run --siz) COMP_CWORD=3; _voltier voltier --siz run; echo "${COMPREPLY[@]}"' \
  - "$scratch/files/usr/share/bash-completion/completions/voltier")
[ "$completed" = $'create\n--size' ] || fail "bash completes: $completed"
if grep -rl '/usr/local/bin\|/usr/local/share' "$scratch/files/usr/lib" "$scratch/files/usr/share/man" \
  "$scratch/files/usr/share/initramfs-tools"; then
  fail "these name another prefix"
fi

say "make install and uninstall"
PREFIX=/opt/voltier DESTDIR=$scratch/opt scripts/install.sh install >/dev/null
grep -q '^ExecStart=/opt/voltier/bin/voltier daemon' "$scratch/opt/opt/voltier/lib/systemd/system/voltier.service"
PREFIX=/opt/voltier DESTDIR=$scratch/opt scripts/install.sh uninstall >/dev/null
left=$(find "$scratch/opt" -not -type d)
[ -z "$left" ] || fail "uninstall leaves $left"
refused=$(setpriv --reuid=65534 --regid=65534 --clear-groups env PREFIX=/usr scripts/install.sh install 2>&1) &&
  fail "a user who is not root installed into /usr"
[ "$(wc -l <<<"$refused")" -eq 1 ] || fail "more than a line: $refused"

say "rpm"
rpm=$packages/voltier-$version-1.$(uname -m).rpm
rpm -qlp "$rpm" | grep -x /usr/bin/voltier
rpm -qp --scripts "$rpm" | grep 'systemctl reload voltier.service'
# This machine's libraries are not rpm's: nothing is known of them in an empty root.
mkdir "$scratch/rpm"
rpm --root "$scratch/rpm" --initdb
rpm --root "$scratch/rpm" -i --nodeps --noscripts "$rpm" "${rpm/voltier-$version/voltier-lab-$version}" 2>&1 |
  { grep -v 'running with root\|Unable to get\|cannot open' || true; }
[ -x "$scratch/rpm/usr/bin/voltier" ] && [ -x "$scratch/rpm/usr/bin/voltier-lab" ]
rpm --root "$scratch/rpm" -e --nodeps --noscripts voltier voltier-lab
[ ! -e "$scratch/rpm/usr/bin/voltier" ] || fail "rpm -e leaves the program"

# The Debian of the host if it is one, as the guest of `make test-vm` has it.
# shellcheck disable=SC1091
suite=${VM_SUITE:-$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo trixie)}
include=systemd-sysv,udev,e2fsprogs,mount,fio,libnbd-bin
cache=$target/packages-root/$suite
if [ "$(cat "$cache/recipe" 2>/dev/null)" != "$include" ]; then
  say "a fresh Debian $suite (once; kept in $cache)"
  rm -rf "$cache"
  mkdir -p "$cache"
  mmdebstrap --quiet --variant=minbase --include="$include" "$suite" "$cache/root.tar"
  echo "$include" >"$cache/recipe"
fi

# systemd makes control groups, below the one of the test.
group=$(findmnt --noheadings --types cgroup2 --output TARGET | head -n 1)/voltier-packages
leave() {
  [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + || true
  rm -rf --one-file-system "$scratch"
}
trap leave EXIT
mkdir -p "$group"

# In namespaces of its own: mounts and processes end with it.
for case in by-hand systemd rpm container; do
  say "$case"
  mkdir "$scratch/root"
  tar --extract --file "$cache/root.tar" --directory "$scratch/root" --exclude './dev/*'
  mkdir "$scratch/root/packages"
  cp "${first[@]}" "${later[@]}" "$packages"/*.rpm packaging/container/Containerfile "$scratch/root/packages/"
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec unshare --mount --pid --net --cgroup --fork --kill-child --propagation private \
      scripts/test-packages-guest.sh "$case" "$scratch/root" "$version"
  )
  rm -rf --one-file-system "$scratch/root"
done
say "packages: all passed"
