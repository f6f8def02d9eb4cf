#!/usr/bin/env bash
# Runs a command without address randomisation if the system allows it: scripts/fixed_addresses.sh COMMAND...
# g++ 12's thread sanitizer cannot start under kernels that randomise more bits than it supports.
if setarch --addr-no-randomize true 2>/dev/null; then
  exec setarch --addr-no-randomize "$@"
fi
exec "$@"
