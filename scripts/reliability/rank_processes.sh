# shellcheck shell=bash
# A job whose ranks are processes, and how it ends; sourced. Needs $work and $ranks. The script defines start_rank RANK
# PORT NAME FLAGS..., which becomes that rank's process. Messages go to descriptor 3, to suppress bash's messages about
# killed processes.
# shellcheck disable=SC2154

exec 3>&2 2>/dev/null
pids=() codes=()
trap 'kill -KILL "${pids[@]}" || true; rm -rf "$work"' EXIT
trap 'echo "$0: line $LINENO failed" >&3' ERR

ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

start_job() { # NAME FLAGS...
  local port=$((20000 + RANDOM % 10000)) rank
  pids=()
  for ((rank = 0; rank < ranks; ++rank)); do
    start_rank "$rank" "$port" "$@" >"$work/said-$rank" 2>&1 &
    pids+=($!)
  done
}

give_up() { # MESSAGE
  local rank
  for ((rank = 0; rank < ranks; ++rank)); do sed "s/^/rank $rank: /" "$work/said-$rank" >&3; done
  echo "$0: $1" >&3
  exit 1
}

runs_on() { # PID
  local state=Z
  { read -r _ _ state _ <"/proc/$1/stat"; } || true
  [[ $state != Z ]]
}

# All ranks but the excepted ones end within so many ms.
end_within() { # MS EXCEPTED...
  local until=$(($(ms) + $1)) rank
  for ((rank = 0; rank < ranks; ++rank)); do
    if [[ " ${*:2} " == *" $rank "* ]]; then continue; fi
    while runs_on "${pids[rank]}"; do
      if (($(ms) > until)); then give_up "rank $rank has not ended within $1 ms"; fi
      sleep 0.01
    done
  done
}

# The exit codes of all ranks, which have ended.
collect() {
  local rank
  for ((rank = 0; rank < ranks; ++rank)); do
    codes[rank]=0
    wait "${pids[rank]}" || codes[rank]=$?
  done
}

# Runs a job to its end.
whole_job() { # NAME FLAGS...
  start_job "$@"
  end_within 600000
  collect
  if [[ "${codes[*]}" =~ [1-9] ]]; then give_up "the job ended with exit codes ${codes[*]}"; fi
}

expect_equal() { # FILE FILE
  if ! cmp "$1" "$2" >&3; then give_up "the job ended otherwise than the undisturbed one"; fi
}
