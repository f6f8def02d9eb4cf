#!/usr/bin/env bash
# Kills (SIGKILL) or stops (SIGSTOP) a rank of a job of four processes at random times. All others must end within 5 s
# of the timeout, none of them with exit code 0, all with the failed rank as the cause; when started again, the job must
# resume from its last checkpoint with the results of an undisturbed one. If a rank is lost when the job is complete,
# others may exit with code 0, but only if the last checkpoint and all results exist.
#   scripts/reliability/lose_ranks.sh WITAN [TIMES [SEED [FLAGS...]]]
# FLAGS: the layout; by default expert parallelism 2 and two replicas.
set -euo pipefail

witan=$(realpath "$1")
times=${2:-200}
seed=${3:-$(date +%s)}
layout=("${@:4}")
if ((${#layout[@]} == 0)); then layout=(--expert-model-parallel-size 2); fi
ranks=4 steps=120 deadline=3 # s
work=$(mktemp -d)
RANDOM=$seed
echo "lose_ranks: $times times, seed $seed, runs of $steps steps, ${layout[*]}"
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
# shellcheck source=scripts/reliability/rank_processes.sh
source "$(dirname "$0")/rank_processes.sh"
write_text

start_rank() { # RANK PORT NAME
  export RANK=$1 WORLD_SIZE=$ranks LOCAL_RANK=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$2
  train "$3" "${layout[@]}" --distributed-timeout-minutes 0.05
}

# How messages name a lost rank: after all have met, and before; rank 0 may have found it first, and ended.
named() { # RANK
  echo "rank 0 ended meanwhile|rank $1 on [^ ]+ is lost: [a-z ]*[a-z]|rank $1 of $ranks did not connect|rank $1 did not (reach|send|answer)|could not connect to rank $1|rank $1 ended before"
}

started=$(ms)
whole_job whole
longest=$((($(ms) - started) * 7 / 10)) # ms that a job is left alone at most
trajectory whole >"$work/whole"

runs=0
finish() {
  trajectory lost >"$work/lost"
  expect_equal "$work/whole" "$work/lost"
  runs=$((runs + 1))
  rm -rf "$work/runs/lost"
}

lose() { # RANK KILL|STOP
  local patience=5000
  # The others wait until the deadline for a rank that is stopped, or that has not connected.
  if [[ $2 == STOP ]] || ! grep -qs steps "$work/said-0"; then patience=$((deadline * 1000 + 5000)); fi
  local hit
  hit=$(ms)
  kill "-$2" "${pids[$1]}" || true
  end_within $patience "$1"
  took=$(($(ms) - hit))
  # A stopped process cannot end by itself: its parent kills it, or it is continued and finds the others gone.
  if [[ $2 == STOP ]] && ((RANDOM % 2)); then kill -CONT "${pids[$1]}" || true; else kill -KILL "${pids[$1]}" || true; fi
  end_within 8000
  collect
}

# Everything that the job must produce: its last checkpoint, and results up to the last step.
complete() {
  local run=$work/runs/lost
  [[ -e $run/checkpoints/step-$steps/manifest.json ]] && grep -qF "\"kind\":\"step\",\"step\":$steps," "$run/metrics.jsonl"
}

# All ranks with an exit code other than 0 name the lost rank.
expect_named() { # VICTIM SIGNAL
  local rank cause
  for ((rank = 0; rank < ranks; ++rank)); do
    if ((rank == $1 || codes[rank] == 0)); then continue; fi
    cause=$(grep -ohE "$(named "$1")" "$work/said-$rank" | tail -1 | sed -E "s/rank $1/rank N/; s/ on [^ ]+//") || true
    if [[ -z $cause ]]; then give_up "rank $rank does not name rank $1, which was lost ($2)"; fi
    causes+="$cause"$'\n'
  done
}

killed=0 stopped=0 over=0 slowest=0 causes=""
begun=$(date +%s)
while ((killed + stopped < times)); do
  start_job lost
  life=$((RANDOM % longest)) victim=$((RANDOM % ranks)) signal=KILL
  if ((RANDOM % 2)); then signal=STOP; fi
  sleep "$(printf '%d.%03d' $((life / 1000)) $((life % 1000)))"
  lose "$victim" "$signal"
  expect_named "$victim" "$signal"
  if [[ " ${codes[*]} " == *" 0 "* ]]; then # all had been done already
    if ! complete; then give_up "exit codes ${codes[*]}, though rank $victim was lost before the job was complete"; fi
    if [[ "${codes[*]}" =~ [1-9] ]]; then over=$((over + 1)) && whole_job lost; fi
    finish
    continue
  fi
  if [[ $signal == KILL ]]; then killed=$((killed + 1)); else stopped=$((stopped + 1)); fi
  if ((took > slowest)); then slowest=$took; fi
  if (((killed + stopped) % 25 == 0)); then echo "lose_ranks: $((killed + stopped)) failures"; fi
done
if [[ -d $work/runs/lost ]]; then
  whole_job lost
  finish
fi
echo "lose_ranks: $killed ranks killed, $stopped stopped, $(($(date +%s) - begun)) s; all others ended within $slowest ms;" \
  "$runs jobs ended bit for bit as the undisturbed one; $over ranks were lost when theirs was complete"
echo -n "$causes" | sort | uniq -c | awk '{ print "lose_ranks:   told " $0 }'
