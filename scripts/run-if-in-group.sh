#!/bin/bash
# Runs a test binary if it belongs to the group: `program` for tests of the real programs, `rest` for all
# others. Cargo starts the binary in the folder of its package.
set -euo pipefail
group=$1
shift
case $PWD in
*/crates/cli | */lab/lab-cli) own=program ;;
*) own=rest ;;
esac
if [ "$own" = "$group" ]; then exec "$@"; fi
