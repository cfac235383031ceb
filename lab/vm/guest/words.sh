# Words for the scripts of the scenarios.

# The device of the drive with this serial number, under the name that it has today.
dev() {
  local name
  name=$(lsblk -dnpo NAME,SERIAL | awk -v serial="$1" '$2 == serial { print $1 }')
  [ -n "$name" ] || { echo "no drive has the serial number $1" >&2; return 1; }
  echo "$name"
}

# What udev knows of the drive with this serial number, a line NAME=VALUE each.
udev_of() { udevadm info --query=property "$(dev "$1")"; }

# Files under a folder: N files of random bytes and lengths, then a list of their checksums.
make_files() {
  local i
  mkdir -p "$1"
  for ((i = 0; i < $2; i++)); do head -c $((RANDOM * 8 + 1)) /dev/urandom >"$1/$i"; done
  sums "$1"
}

sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }
