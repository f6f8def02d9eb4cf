#!/usr/bin/env bash
# Trains for a long time and checks that resident memory, open files, threads and the time of a step do not grow. Then
# opens a run of a million steps.
# Compares the processor time of steps, which other programs disturb less than wall time.
#   scripts/reliability/soak.sh WITAN [SECONDS]
# SECONDS: of training, 300 by default; 21600 is the long form. The first quarter warms up; the second quarter is
# compared with the last one.
set -euo pipefail

witan=$(realpath "$1")
seconds=${2:-300}
steps=1000000000 # ended by SIGTERM
work=$(mktemp -d)
process=0
trap 'if ((process)); then kill -KILL "$process" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
write_text

give_up() {
  echo "soak: $1" >&2
  exit 1
}

# --- 1 ---
(train soak --ranks 2 --expert-model-parallel-size 2 --save-interval 200 --eval-interval 200 --keep-last 2 \
  --lr-decay-iters 1000000) >"$work/said" 2>&1 &
process=$!
metrics=$work/runs/soak/metrics.jsonl
for ((i = 0; i < 600; ++i)); do
  if grep -qs '"kind":"save"' "$metrics"; then break; fi
  kill -0 "$process" || { cat "$work/said" >&2; give_up "the run ended"; }
  sleep 0.1
done
begun=$(date +%s)
echo "soak: training for $seconds s"
while (($(date +%s) < begun + seconds)); do
  # With cat, since bash exits if $(<FILE) finds no file.
  status=$(cat "/proc/$process/status" 2>/dev/null) || { cat "$work/said" >&2; give_up "the run ended"; }
  field() { sed -nE "s/^$1:\s+([0-9]+).*/\1/p" <<<"$status"; }
  files=("/proc/$process/fd"/*)
  ticks=$(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$process/stat")
  step=$(grep -F '"kind":"step"' <(tail -n 20 "$metrics") | tail -1 | sed -E 's/.*"step":([0-9]+).*/\1/')
  echo "$(field VmRSS) ${#files[@]} $(field Threads) $ticks $step" >>"$work/samples"
  sleep 1
done
kill -TERM "$process"
code=0
wait "$process" || code=$?
process=0
((code == 75)) || { cat "$work/said" >&2; give_up "the run ended with exit code $code"; }

# The medians of the second and the last quarter of a column of numbers.
quarters() {
  awk '{ all[NR] = $1 } END {
    for (q = 2; q <= 4; q += 2) {
      from = int(NR * (q - 1) / 4) + 1; to = int(NR * q / 4); n = 0; split("", part)
      for (i = from; i <= to; ++i) part[++n] = all[i]
      for (i = 2; i <= n; ++i) for (j = i; j > 1 && part[j] < part[j - 1]; --j) {
        swap = part[j]; part[j] = part[j - 1]; part[j - 1] = swap
      }
      printf q == 2 ? "%s " : "%s\n", part[int((n + 1) / 2)]
    }
  }'
}
# Whether a value grew by more than so many per cent, or by more than the slack.
flat() { # NAME UNIT PERCENT SLACK < column
  local before after
  read -r before after < <(quarters)
  echo "soak: $1: $before $2, at the end $after $2"
  awk -v a="$before" -v b="$after" -v percent="$3" -v slack="$4" 'BEGIN { exit b > a * (1 + percent / 100) && b > a + slack }' ||
    give_up "$1 grew"
}
cut -d' ' -f1 "$work/samples" | flat "resident memory" KiB 2 4096
cut -d' ' -f2 "$work/samples" | flat "open files" "" 0 0
cut -d' ' -f3 "$work/samples" | flat threads "" 0 0
# For each twentieth of the samples.
awk -v hertz="$(getconf CLK_TCK)" '{ ticks[NR] = $4; step[NR] = $5 } END {
  for (i = 1; i <= 20; ++i) {
    from = int((NR - 1) * (i - 1) / 20) + 1; to = int((NR - 1) * i / 20) + 1
    if (step[to] > step[from]) printf "%.4f\n", 1000 * (ticks[to] - ticks[from]) / hertz / (step[to] - step[from])
  }
}' "$work/samples" | flat "processor time of a step" ms 15 0
count=$(grep -c '"kind":"step"' "$metrics")
saves=$(grep -c '"kind":"save"' "$metrics")
echo "soak: $count steps, $saves saves, $(stat -c %s "$metrics") bytes of metrics"

# --- 2 ---
# Metrics of a million steps: those of the run repeated, with new step numbers.
million=$work/runs/million
mkdir -p "$million"
cp "$work/runs/soak/config.toml" "$million/"
grep -m 1 -F '"kind":"run"' "$metrics" >"$million/metrics.jsonl"
grep -m 1000 -F '"kind":"step"' "$metrics" |
  awk '{
    at = match($0, /"step":[0-9]+/)
    before[NR] = substr($0, 1, at + 6); behind[NR] = substr($0, at + RLENGTH)
  } END {
    for (step = 1; step <= 1000000; ++step) {
      line = (step - 1) % NR + 1
      print before[line] step behind[line]
    }
  }' >>"$million/metrics.jsonl"
echo "soak: a million steps, $(stat -c %s "$million/metrics.jsonl") bytes"
within() { # SECONDS WHAT COMMAND...
  local start=${EPOCHREALTIME/./} took
  "${@:3}" >"$work/said" 2>&1 || { cat "$work/said" >&2; give_up "$2 failed"; }
  took=$(((${EPOCHREALTIME/./} - start) / 1000))
  echo "soak: $2 took $took ms"
  ((took <= $1 * 1000)) || give_up "$2 took more than $1 s"
}
within 20 "witan runs" "$witan" runs --runs-folder "$work/runs"
within 20 "witan report" "$witan" report million --runs-folder "$work/runs"
echo "soak: its report has $(stat -c %s "$million/report.html") bytes"
within 30 "witan runs compare" "$witan" runs compare soak million --runs-folder "$work/runs" --report "$work/both.html"
"$witan" watch million --runs-folder "$work/runs" --port 0 >"$work/watch" 2>&1 &
process=$!
for ((i = 0; i < 300; ++i)); do
  address=$(sed -nE 's/^listening at ([^ ]+).*/\1/p' "$work/watch")
  if [[ -n $address ]]; then break; fi
  sleep 0.1
done
[[ -n $address ]] || give_up "witan watch does not listen"
within 20 "the page of witan watch" curl -sSfo "$work/page" "$address"
within 20 "the page of witan watch, again" curl -sSfo "$work/page" "$address"
kill -TERM "$process"
wait "$process" || true
process=0
