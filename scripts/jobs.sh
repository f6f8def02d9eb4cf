#!/usr/bin/env bash
# Prints how many compilers may run at once: one per usable core, and no more than memory holds at 1.5 GB each.
set -euo pipefail

cores=$(nproc)
memory_kb=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)

# In a container, /proc shows the host's cores and memory; the container's limits are in its control group.
group=/sys/fs/cgroup
if [[ -r $group/cpu.max ]] && read -r quota period <"$group/cpu.max" && [[ $quota != max ]]; then
  granted=$(((quota + period - 1) / period))
  if ((granted < cores)); then cores=$granted; fi
fi
if [[ -r $group/memory.max ]] && read -r limit <"$group/memory.max" && [[ $limit != max ]]; then
  if ((limit / 1024 < memory_kb)); then memory_kb=$((limit / 1024)); fi
fi

jobs=$((memory_kb / 1500000))
if ((jobs > cores)); then jobs=$cores; fi
if ((jobs < 1)); then jobs=1; fi
echo "$jobs"
