#!/usr/bin/env bash
# Runs a command without address randomisation, where the system lets it: scripts/fixed_addresses.sh COMMAND...
# g++ 12's thread sanitizer cannot start under kernels that randomise more bits than it knows of.
if setarch --addr-no-randomize true 2>/dev/null; then
  exec setarch --addr-no-randomize "$@"
fi
exec "$@"
