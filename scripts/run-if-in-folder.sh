#!/bin/bash
# usage: scripts/run-if-in-folder.sh FOLDERS BINARY...
# Runs a test binary if its package is in one of the folders ("crates/array xtask"). Cargo starts the binary in the
# folder of its package.
set -euo pipefail
folders=$1
shift
for folder in $folders; do
  case $PWD in */"$folder") exec "$@" ;; esac
done
