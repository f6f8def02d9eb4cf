#!/usr/bin/env bash
# Replaces `srun` or `torchrun`, by the name it is called, in tests of the documentation's examples: starts the
# processes of all hosts on this machine with the launcher's variables, and fails if one of them fails.
set -euo pipefail

tasks=1 nodes=1 of_node=""
while [[ $1 == --* ]]; do
  case "$1" in
    --no-python) shift ;;
    --ntasks) tasks=$2 && shift 2 ;;
    --nodes) nodes=$2 && shift 2 ;;
    --ntasks-per-node | --nproc-per-node) of_node=$2 && shift 2 ;;
    --gpus-per-node) shift 2 ;;
    *) echo "$0: $1 is not known" >&2 && exit 2 ;;
  esac
done
if [[ $tasks == 1 && -n $of_node ]]; then tasks=$((nodes * of_node)); fi

port=$((20000 + $$ % 8000))
processes=()
for ((rank = 0; rank < tasks; ++rank)); do
  if [[ ${0##*/} == torchrun ]]; then
    RANK=$rank WORLD_SIZE=$tasks LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
  else
    SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=$tasks SLURM_LOCALID=$rank SLURM_STEP_NUM_NODES=1 \
      MASTER_PORT=$port "$@" &
  fi
  processes+=("$!")
done
failed=0
for process in "${processes[@]}"; do wait "$process" || failed=$?; done
exit "$failed"
