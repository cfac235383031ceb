#!/bin/bash
# usage: scripts/packages.sh deb|rpm
# Makes packages in target/packages of what `make build` built: voltier and voltier-lab. The version is that of
# Cargo.toml, or VERSION. MAINTAINER='NAME <ADDRESS>' is who answers for packages that are handed on.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
case $kind in deb | rpm) ;; *) echo "usage: scripts/packages.sh deb|rpm" >&2; exit 2 ;; esac

target=$PWD/${CARGO_TARGET_DIR:-target}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
maintainer=${MAINTAINER:-The Voltier contributors <root@localhost>}
out=$target/packages
work=$target/packages/work
rm -rf "$work"
mkdir -p "$work/staged"
umask 022

# Times of the files are that of the commit: the same sources and programs make the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

# Everything for both packages, as files under /usr.
stage() {
  PREFIX=/usr DESTDIR=$work/staged scripts/install.sh install >/dev/null
  strip --strip-unneeded "$work"/staged/usr/bin/*
  gzip -9n "$work"/staged/usr/share/man/man1/*.1
}

is_of_lab() { [[ $1 =~ ^usr/(bin/voltier-lab|share/man/man1/voltier-(lab|demo).*)$ ]]; }

# The files of one package of the two.
files_of() { # voltier|voltier-lab
  local file
  (cd "$work/staged" && find usr -type f -o -type l) | LC_ALL=C sort | while read -r file; do
    if is_of_lab "$file"; then
      [ "$1" = voltier ] || echo "$file"
    else
      [ "$1" = voltier-lab ] || echo "$file"
    fi
  done
}

deb() { # PACKAGE
  local package=$1 root=$work/debian/$1 file docs
  docs=$root/usr/share/doc/$package
  mkdir -p "$docs" "$root/DEBIAN"
  files_of "$package" | (cd "$work/staged" && xargs cp --parents -t "$root")
  cp packaging/debian/copyright "$docs/copyright"
  if [ "$package" = voltier ]; then
    # Debian has the licences' texts, and its own places for the changelog and for zsh.
    rm "$docs/LICENSE-APACHE" "$docs/LICENSE-MIT"
    mv "$docs/CHANGELOG.md" "$docs/changelog"
    gzip -9n "$docs/third-party-notices"
    mkdir -p "$root/usr/share/zsh/vendor-completions"
    mv "$root/usr/share/zsh/site-functions/_voltier" "$root/usr/share/zsh/vendor-completions/"
    rmdir "$root/usr/share/zsh/site-functions"
    install -D -m 644 packaging/debian/voltier.needrestart "$root/etc/needrestart/conf.d/voltier.conf"
    echo /etc/needrestart/conf.d/voltier.conf >"$root/DEBIAN/conffiles"
  else
    cp CHANGELOG.md "$docs/changelog"
  fi
  cp "$work/debian/changelog" "$docs/changelog.Debian"
  gzip -9n "$docs/changelog" "$docs/changelog.Debian"
  for file in preinst postinst prerm postrm triggers; do
    [ ! -e "packaging/debian/$package.$file" ] || cp "packaging/debian/$package.$file" "$root/DEBIAN/$file"
  done
  chmod -f 755 "$root"/DEBIAN/{postinst,prerm,postrm} || true
  if [ -e "packaging/debian/$package.lintian-overrides" ]; then
    install -D -m 644 "packaging/debian/$package.lintian-overrides" "$root/usr/share/lintian/overrides/$package"
  fi
  find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  (
    cd "$work"
    # The versions of the C library that the program's symbols ask for.
    dpkg-shlibdeps --warnings=0 -T"debian/$package.substvars" -e "debian/$package/usr/bin/$package"
    dpkg-gencontrol -p"$package" -P"debian/$package" -T"debian/$package.substvars"
    cd "debian/$package"
    find usr -type f | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums
  )
  dpkg-deb --root-owner-group --build "$root" "$out" | sed 's/^dpkg-deb: //'
}

debs() {
  mkdir -p "$work/debian"
  sed "s/@MAINTAINER@/$maintainer/" packaging/debian/control >"$work/debian/control"
  {
    printf 'voltier (%s) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n' "$version-1"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -uR -d "@$SOURCE_DATE_EPOCH")"
  } >"$work/debian/changelog"
  deb voltier
  deb voltier-lab
}

rpms() {
  local package
  # Other distributions have no initramfs-tools.
  rm -r "$work/staged/usr/share/initramfs-tools"
  gzip -9n "$work/staged/usr/share/doc/voltier/third-party-notices"
  mkdir "$work/lists"
  for package in voltier voltier-lab; do
    { [ "$package" = voltier-lab ] || echo "%dir /usr/share/doc/voltier"; files_of "$package" | sed 's|^|/|'; } \
      >"$work/lists/$package.files"
  done
  # A dash parts version and release.
  rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_rpmdir $out" \
    --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "voltier_version ${version//-/\~}" --define "staged $work/staged" --define "lists $work/lists" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
    --define "_buildhost localhost" packaging/rpm/voltier.spec
  ls "$out"/voltier*-"${version//-/\~}"-1.*.rpm
}

stage
"${kind}s"
rm -rf "$work"
