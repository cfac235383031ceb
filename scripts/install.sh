#!/bin/bash
# usage: scripts/install.sh install|uninstall
# Puts what `make build` built under PREFIX (/usr/local), below DESTDIR if that is given: programs, unit, udev rules,
# the hook of initramfs-tools, completions, manual pages, licences and the guide. `uninstall` takes the same away.
# Packages are made of this too (scripts/packages.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
dest=${DESTDIR:-}
programs=${PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}

# What the files of packaging/ and the manual pages name: the one place where that becomes the path of this prefix.
place() { # MODE FROM TO
  install -d "$(dirname "$3")"
  sed -e "s|/usr/local/bin/voltier|$prefix/bin/voltier|g" \
    -e "s|/usr/local/share/doc|$prefix/share/doc|g" "$2" >"$3"
  chmod "$1" "$3"
}

fail() { echo "$1" >&2; exit 1; }

case $prefix in
  /*) root=$dest$prefix ;;
  *) fail "PREFIX=$prefix is no absolute path: make install PREFIX=/usr/local" ;;
esac
# initramfs-tools has hooks in /usr and /etc alone.
hook=$root/share/initramfs-tools/hooks/voltier
if [ "$prefix" = /usr/local ]; then hook=$dest/etc/initramfs-tools/hooks/voltier; fi

# Whoever exists of the folders above must be writable.
writable() {
  local folder=$1
  until [ -e "$folder" ]; do folder=$(dirname "$folder"); done
  if [ ! -d "$folder" ] || [ ! -w "$folder" ]; then
    fail "$folder cannot be written: become root, or choose a place with PREFIX=\$HOME/.local"
  fi
}
writable "$root/bin"
writable "$(dirname "$hook")"

is_live() { [ -z "$dest" ] && [ "$(id -u)" -eq 0 ]; }

# The service manager and udev read what changed.
reload() {
  if ! is_live; then return; fi
  if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
  if [ -S /run/udev/control ]; then udevadm control --reload || true; fi
}

install_all() {
  local program scratch date
  for program in voltier voltier-lab; do
    [ -x "$programs/$program" ] || fail "$programs/$program is not there: run \`make build\` first"
  done
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064 # the name of now
  trap "rm -rf '$scratch'" EXIT
  date=$(git log -1 --format=%cs 2>/dev/null || date -u -r CHANGELOG.md +%F)
  "$programs/voltier" manual "$scratch" "$date"
  "$programs/voltier-lab" manual "$scratch" "$date"

  # A program that runs is replaced, not written to.
  install -D -m 755 -t "$root/bin" "$programs/voltier" "$programs/voltier-lab"
  place 644 packaging/systemd/voltier.service "$root/lib/systemd/system/voltier.service"
  place 644 packaging/udev/61-voltier.rules "$root/lib/udev/rules.d/61-voltier.rules"
  place 755 packaging/initramfs-tools/voltier "$hook"

  local page file
  for page in "$scratch"/*.1; do
    place 644 "$page" "$root/share/man/man1/$(basename "$page")"
  done
  "$programs/voltier" completions bash >"$scratch/bash"
  "$programs/voltier" completions zsh >"$scratch/zsh"
  "$programs/voltier" completions fish >"$scratch/fish"
  install -D -m 644 "$scratch/bash" "$root/share/bash-completion/completions/voltier"
  install -D -m 644 "$scratch/zsh" "$root/share/zsh/site-functions/_voltier"
  install -D -m 644 "$scratch/fish" "$root/share/fish/vendor_completions.d/voltier.fish"

  install -D -m 644 -t "$root/share/doc/voltier" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT
  for file in docs/*.md docs/guide/*.md docs/formats/*.md; do
    install -D -m 644 "$file" "$root/share/doc/voltier/$file"
  done
  # Made by `make build`: root may have no cargo.
  [ -e "$programs/third-party-notices" ] || scripts/notices.sh >"$programs/third-party-notices"
  install -D -m 644 -t "$root/share/doc/voltier" "$programs/third-party-notices"
}

uninstall_all() {
  # Nothing is taken away under volumes that are in use: this fails then, and says by whom.
  if is_live && [ -x "$root/bin/voltier" ] && [ -s /var/lib/voltier/daemon.pid ]; then
    "$root/bin/voltier" --state /var/lib/voltier stop
  fi
  if is_live && [ -d /run/systemd/system ]; then systemctl disable --now voltier 2>/dev/null || true; fi
  rm -f "$root/bin/voltier" "$root/bin/voltier-lab" "$root/lib/systemd/system/voltier.service" \
    "$root/lib/udev/rules.d/61-voltier.rules" "$hook" \
    "$root"/share/man/man1/voltier.1 "$root"/share/man/man1/voltier-*.1 \
    "$root/share/bash-completion/completions/voltier" "$root/share/zsh/site-functions/_voltier" \
    "$root/share/fish/vendor_completions.d/voltier.fish"
  rm -rf "$root/share/doc/voltier"
}

case "${1:-}" in
  install)
    install_all
    reload
    if is_live && [ -s /var/lib/voltier/daemon.pid ]; then
      echo "installed below $prefix; a daemon that runs becomes this program by: voltier upgrade"
    else
      echo "installed below $root; with systemd next: systemctl enable --now voltier"
    fi
    ;;
  uninstall)
    uninstall_all
    reload
    echo "taken away below $root; what volumes and arrays there are is still in /var/lib/voltier"
    ;;
  *) fail "usage: scripts/install.sh install|uninstall" ;;
esac
