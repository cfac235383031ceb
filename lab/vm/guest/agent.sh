#!/bin/bash
# Runs what the host sends over a virtio port, one script after the other. A request is a line
# `NUMBER LENGTH` and LENGTH bytes of script; an answer is a line `done NUMBER EXIT-CODE LENGTH` and LENGTH
# bytes of output.
export LC_ALL=C HOME=/root
port=/dev/virtio-ports/voltier.agent
until [ -e "$port" ]; do sleep 0.1; done
exec 3<>"$port"
cd /root || exit 1
printf 'ready %s\n' "$(cat /proc/sys/kernel/random/boot_id)" >&3
while read -r -u 3 number length; do
  IFS= read -r -d '' -N "$length" -u 3 script
  bash -euo pipefail -c ". /usr/local/lib/vm-words.sh
$script" >/run/vm-agent.out 2>&1 </dev/null 3>&-
  code=$?
  printf 'done %s %s %s\n' "$number" "$code" "$(stat -c %s /run/vm-agent.out)" >&3
  cat /run/vm-agent.out >&3
done
