#!/usr/bin/env bash
# A job on four hosts: network namespaces with an address and a host name each, joined by a switch, on one machine.
#   scripts/reliability/hosts.sh WITAN
# 1. The job computes the same bits as threads of one process.
# 2. Processes that do not know the job's secret, or send noise, have no effect.
# 3. In a step, ranks send as many bytes as `witan plan` predicts, counted at the hosts' network interfaces.
# 4. After a host is disconnected, the network is split, or a process is stopped or killed, all others end within 5 s of
#    the timeout, none with exit code 0, and the job resumes from its last checkpoint to the same end.
# Needs root (skipped otherwise). Nothing leaves the machine: the namespaces have no way out.
# shellcheck disable=SC2016  # what inner shells expand
set -euo pipefail

if ((EUID != 0)) || ! ip netns add "witan-$$-switch" 2>/dev/null; then
  echo "hosts: needs root and network namespaces; skipped"
  exit 0
fi
witan=$(realpath "$1")
ranks=4 steps=40 deadline=3 # s
work=$(mktemp -d)
WITAN_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export WITAN_JOB_SECRET
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
small_run=$(realpath "$(dirname "$0")/small_run.sh")
# shellcheck source=scripts/reliability/rank_processes.sh
source "$(dirname "$0")/rank_processes.sh"
write_text

host() { echo "witan-$$-$1"; } # NUMBER: its namespace
switch() { ip -n "witan-$$-switch" "$@"; }
build_network() {
  local one
  switch link add left type bridge
  switch link add right type bridge
  switch link set left up
  switch link set right up
  for ((one = 0; one <= ranks; ++one)); do # the last one is a stranger's
    ip netns add "$(host $one)"
    ip -n "$(host $one)" link add eth0 type veth peer name "port$one" netns "witan-$$-switch"
    ip -n "$(host $one)" address add "10.99.0.$((one + 1))/24" dev eth0
    ip -n "$(host $one)" link set lo up
    ip -n "$(host $one)" link set eth0 up
    switch link set "port$one" master left up
  done
}
remove_network() {
  local one
  for ((one = 0; one <= ranks; ++one)); do ip netns delete "$(host $one)" || true; done
  ip netns delete "witan-$$-switch" || true
}
trap 'kill -KILL "${pids[@]}" || true; remove_network; rm -rf "$work"' EXIT
build_network

on_host() { # NUMBER COMMAND...
  exec ip netns exec "$(host "$1")" unshare --uts bash -c 'hostname "host-$1" && shift && exec "$@"' bash "$@"
}
start_rank() { # RANK PORT NAME FLAGS...
  export RANK=$1 WORLD_SIZE=$ranks LOCAL_RANK=0 MASTER_ADDR=10.99.0.1 MASTER_PORT=$2
  export witan work steps
  on_host "$1" bash -c 'source "$0"; train "$@"' "$small_run" "${@:3}" \
    --distributed-timeout-minutes 0.05
}
say() { echo "hosts: $*"; }

# --- 1 ---
layouts=("--expert-model-parallel-size 1" "--expert-model-parallel-size 2" "--expert-model-parallel-size 4"
  "--expert-model-parallel-size 2 --dtype float32 --deterministic true"
  "--expert-model-parallel-size 2 --use-distributed-optimizer true"
  "--expert-model-parallel-size 2 --data-parallel-sharding-strategy optim_grads_params"
  "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel true"
  "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 2"
  "--expert-model-parallel-size 2 --context-parallel-size 2"
  "--ranks 8 --expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel true")
for flags in "${layouts[@]}"; do
  read -ra layout <<<"$flags"
  rm -rf "$work/runs"
  alone=("${layout[@]}")
  [[ $flags == *--ranks* ]] || alone+=(--ranks "$ranks")
  (train threads "${alone[@]}") >"$work/said-0" 2>&1 || give_up "threads do not train $flags"
  whole_job hosts "${layout[@]}"
  trajectory threads >"$work/threads"
  trajectory hosts >"$work/hosts"
  expect_equal "$work/threads" "$work/hosts"
done
say "${#layouts[@]} layouts, one of two ranks to a host, ended on $ranks hosts bit for bit as on threads"

# --- 2 ---
layout=(--expert-model-parallel-size 2)
strangers() { # PORT: at it from the start of the job on
  export RANK=3 WORLD_SIZE=$ranks LOCAL_RANK=0 MASTER_ADDR=10.99.0.1 MASTER_PORT=$1 WITAN_JOB_SECRET=guessed
  for ((i = 0; i < 20; ++i)); do
    (on_host $ranks bash -c "head -c 100000 /dev/urandom >/dev/tcp/10.99.0.1/$1") >/dev/null 2>&1 || true
    sleep 0.02
  done &
  export witan work steps
  on_host $ranks bash -c 'source "$0"; train "$@"' "$small_run" stranger "${layout[@]}"
}
rm -rf "$work/runs/hosts"
port=$((20000 + RANDOM % 10000))
strangers $port >"$work/stranger" 2>&1 &
stranger=$!
pids=()
for rank in 0 1 2 3; do
  start_rank $rank $port hosts "${layout[@]}" >"$work/said-$rank" 2>&1 &
  pids+=($!)
  sleep 0.1
done
end_within 60000
collect
if [[ "${codes[*]}" != "0 0 0 0" ]]; then give_up "strangers ended the job: ${codes[*]}"; fi
code=0
wait $stranger || code=$?
if ((code != 7)) || ! grep -q "WITAN_JOB_SECRET differs\|cannot connect\|could not connect" "$work/stranger"; then
  cat "$work/stranger" >&3
  give_up "a stranger ended with exit code $code"
fi
(train again --ranks $ranks "${layout[@]}") >/dev/null 2>&1
trajectory again >"$work/whole"
trajectory hosts >"$work/hosts"
expect_equal "$work/whole" "$work/hosts"
say "a stranger with another secret and 2 MB of noise at rank 0's port changed nothing; the stranger ended with 7"

# --- 3 ---
sent() { # by all hosts, since they are there
  local one total=0
  for ((one = 0; one < ranks; ++one)); do
    total=$((total + $(ip netns exec "$(host $one)" cat /sys/class/net/eth0/statistics/tx_bytes)))
  done
  echo $total
}
per_step() { # FLAGS...: from the difference of two runs
  local before bytes=()
  for steps in 4 14; do
    rm -rf "$work/runs"
    before=$(sent)
    whole_job hosts "$@" --eval-interval 0 --save-interval 0
    bytes+=($(($(sent) - before)))
  done
  echo $(((bytes[1] - bytes[0]) / 10))
}
compare_bytes() { # NAME MOST_PERCENT_MORE FLAGS...
  local flags=("${@:3}" --hidden-size 128 --num-layers 2 --seq-length 32 --ffn-hidden-size 256)
  local planned measured
  planned=$("$witan" plan --ranks $ranks --threads 1 --micro-batch-size 1 --global-batch-size 4 --json \
    --dtype bfloat16 --tokenizer-vocab-size 260 "${flags[@]}" --data "$work/text.txt" | jq '[.ranks[].sent[][]] | add | floor')
  measured=$(per_step "${flags[@]}")
  if ((measured < planned || measured * 100 > planned * (100 + $2))); then
    give_up "$1: a step sent $measured bytes, but $planned are planned"
  fi
  say "$1: a step sends $planned bytes by the plan, $measured at the network interface, headers included"
}
if command -v jq >/dev/null; then
  compare_bytes "dense, replicated" 5 --num-experts 0
  compare_bytes "dense, distributed optimizer" 5 --num-experts 0 --use-distributed-optimizer true
  compare_bytes "experts divided by 2" 5 --num-experts 4 --expert-model-parallel-size 2
  compare_bytes "dense, parameters divided" 5 --num-experts 0 --data-parallel-sharding-strategy optim_grads_params
  compare_bytes "tensor 2, sequence parallel" 8 --num-experts 0 --tensor-model-parallel-size 2 --sequence-parallel true
  compare_bytes "context 2" 8 --num-experts 0 --context-parallel-size 2
  compare_bytes "pipeline 2" 5 --num-experts 0 --pipeline-model-parallel-size 2
else
  say "jq is missing: bytes were not compared"
fi

# --- 4 ---
steps=400
rm -rf "$work/runs"
whole_job whole "${layout[@]}"
trajectory whole >"$work/whole"
# From its port on, packets of these hosts go to the other switch, which has no hosts: nothing reports that they are
# lost.
cut_off() { for one in "$@"; do switch link set "port$one" master right; done; }
join() { for one in "$@"; do switch link set "port$one" master left; done; }
disturb() { # NAME RANK DISTURB... -- MEND...; the rank, if not -, does not end by itself before it is mended
  local name=$1 gone=$2 mend=() hit least took
  shift 2
  local act=()
  while [[ $1 != -- ]]; do act+=("$1") && shift; done
  mend=("${@:2}")
  start_job lost "${layout[@]}"
  until grep -qs '^work' "$work/said-0"; do
    sleep 0.02
    if ! runs_on "${pids[0]}"; then give_up "the job ended before it could be disturbed"; fi
  done
  sleep 0.3
  hit=$(ms)
  "${act[@]}"
  end_within $((deadline * 1000 + 5000)) "$gone"
  took=$(($(ms) - hit))
  "${mend[@]}"
  end_within 8000
  collect
  least=$(printf '%s\n' "${codes[@]}" | sort -n | head -1)
  if ((least == 0)); then give_up "$name: exit codes ${codes[*]}"; fi
  say "$name: all others ended within $took ms, exit codes ${codes[*]}: $(tail -1 "$work/said-1")"
}
disturb "host 2 is cut off" - cut_off 2 -- join 2
disturb "hosts 0 and 1 are cut off from 2 and 3" - cut_off 2 3 -- join 2 3
disturb "rank 3 is stopped" 3 eval 'kill -STOP ${pids[3]}' -- eval 'kill -CONT ${pids[3]}'
disturb "rank 0 is stopped" 0 eval 'kill -STOP ${pids[0]}' -- eval 'kill -KILL ${pids[0]}'
disturb "rank 0 is killed" - eval 'kill -KILL ${pids[0]}' -- true
whole_job lost "${layout[@]}"
trajectory lost >"$work/lost"
expect_equal "$work/whole" "$work/lost"
say "the job that was disturbed so went on to the end of an undisturbed one, bit for bit"
