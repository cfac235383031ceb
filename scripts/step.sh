#!/bin/bash
# usage: scripts/step.sh NAME COMMAND...   runs the command, and prints and notes how long it took
#        scripts/step.sh --table           the steps noted since the last table, longest first
# The notes are in target/steps, one line each: seconds, seconds of processors, name, exit code.
set -euo pipefail
cd "$(dirname "$0")/.."
notes=target/steps

if [ "${1:-}" = --table ]; then
  [ -e "$notes" ] || exit 0
  echo "seconds  cpu s  step"
  sort -rn "$notes" | awk -F'\t' '{ printf "%7d %6d  %s%s\n", $1, $2, $3, $4 ? " (failed)" : "" }'
  awk -F'\t' '{ all += $1; cpu += $2 } END { printf "%7d %6d  all\n", all, cpu }' "$notes"
  rm -f "$notes"
  exit 0
fi

name=$1
shift
echo "== $name"
started=$SECONDS
status=0
"$@" || status=$?
took=$((SECONDS - started))
# The last line of `times` has the processor time of the children that have ended: "1m2.345s 0m1.234s".
cpu=$(times | tail -n 1 | awk '{ for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); all += part[1] * 60 + part[2] }
  printf "%d", all }')
mkdir -p target
printf '%d\t%d\t%s\t%d\n' "$took" "$cpu" "$name" "$status" >>"$notes"
echo "== $name: $took s"
exit "$status"
