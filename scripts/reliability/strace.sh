#!/usr/bin/env bash
# The kernel's view of saving, through strace:
#   scripts/reliability/strace.sh WITAN TEST_RELIABILITY
# 1. The calls at which tests/reliability kills and fails a save are all the calls that change files there.
# 2. The real program is killed at the n-th mkdir, fsync, rename, unlink …  of every thread, for every n, and fails there
#    with ENOSPC and EIO; its run always resumes, to the end of a run that was never disturbed.
set -euo pipefail

if ! command -v strace >/dev/null || ! strace -o /dev/null true 2>/dev/null; then
  echo "strace: not installed, or not allowed here; skipped"
  exit 0
fi
witan=$(realpath "$1")
tests=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# --- 1 ---
WITAN_RELIABILITY=all strace -f -y -qq -s 8 -o "$work/trace" \
  -e trace=openat,write,fsync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir \
  "$tests" --gtest_also_run_disabled_tests --gtest_filter='Saving.DISABLED_ListsItsCalls' >"$work/listed"
# Maps names of the C library and of the kernel to one.
counted() {
  sed -E 's/^(open|open64|openat64|opendir)$/openat/; s/^(rename|renameat)$/renameat2/; s/^mkdirat$/mkdir/; s/^(unlink|rmdir|remove)$/unlinkat/' |
    grep -E '^(openat|write|fsync|renameat2|mkdir|unlinkat)$' | sort | uniq -c | awk '{ print $2 ": " $1 }'
}
grep '^call ' "$work/listed" | awk '{ print $2 }' | counted >"$work/seen"
awk '/"begin/ { on = 1 } /"call / { on = 0 } on && /\/now\/run\/checkpoints/ && !/resumed>/' "$work/trace" |
  sed -E 's/^[0-9]+ +([a-z0-9]+)\(.*/\1/' | counted >"$work/kernel"
if ! diff "$work/kernel" "$work/seen" >&2; then
  echo "strace: the kernel (<) saw other calls than those at which the tests inject faults (>)" >&2
  exit 1
fi
echo "strace: the tests see every call of a save that changes files: $(paste -sd ' ' "$work/seen")"

# --- 2 ---
for ((i = 0; i < 200; ++i)); do
  printf 'The council of experts met for the %dth time, in winter, and spoke of ships and grain.\n\n' "$i"
done >"$work/text.txt"
train=("$witan" train --data "$work/text.txt" --ranks 2 --threads 1 --dtype bfloat16
  --num-layers 1 --hidden-size 16 --num-experts 4 --ffn-hidden-size 16 --seq-length 16 --micro-batch-size 1
  --global-batch-size 4 --tokenizer-vocab-size 260 --held-out-fraction 0.05 --eval-iters 1 --eval-interval 0
  --lr-warmup-iters 0 --lr-decay-iters 6 --save-interval 2 --keep-last 1 --sample-tokens 0)
shards() { # RUNS
  (cd "$1/default/checkpoints/step-6" && sha256sum shard-*.safetensors)
}
"${train[@]}" --runs-folder "$work/before" --train-iters 2 >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
restore() { rm -rf "$work/runs" && cp -a "$work/before" "$work/runs"; }

restore
strace -f -qq -o "$work/trace" -e trace=write,fsync,rename,renameat2,mkdir,unlink,unlinkat,rmdir \
  "${train[@]}" --runs-folder "$work/runs" --train-iters 6 >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
shards "$work/runs" >"$work/whole"
# The maximum number of calls of each name in a thread, since strace counts per thread.
sed -E 's/^([0-9]+) +([a-z0-9]+)\(.*/\1 \2/; /^[0-9]+ [a-z0-9]+$/!d' "$work/trace" | sort | uniq -c |
  awk '{ if ($1 > most[$3]) most[$3] = $1 } END { for (name in most) print name, most[name] }' | sort >"$work/most"

hits=0 codes=""
while read -r name most; do
  for fault in signal=KILL error=ENOSPC error=EIO; do
    for ((i = 1; i <= most; ++i)); do
      restore
      code=0
      { # what bash says of the killed is not wanted
        strace -f -qq -o /dev/null -e "trace=$name" -e "inject=$name:$fault:when=$i" \
          "${train[@]}" --runs-folder "$work/runs" --train-iters 6 >"$work/said" 2>&1 || code=$?
      } 2>/dev/null
      case $code in
        0 | 4 | 5 | 9 | 137) ;;
        *)
          cat "$work/said" >&2
          echo "strace: $fault in $name $i ended the run with exit code $code" >&2
          exit 1
          ;;
      esac
      codes+="$fault:$code"$'\n'
      if ! "${train[@]}" --runs-folder "$work/runs" --train-iters 6 >"$work/said" 2>&1; then
        cat "$work/said" >&2
        echo "strace: after $fault in $name $i the run does not resume" >&2
        exit 1
      fi
      if ! shards "$work/runs" | cmp - "$work/whole"; then
        echo "strace: after $fault in $name $i the results of the run differ from the undisturbed one" >&2
        exit 1
      fi
      hits=$((hits + 1))
    done
  done
done <"$work/most"
echo "strace: $hits faults of $(paste -sd ';' "$work/most"); every run resumed to the undisturbed end"
echo -n "$codes" | sort | uniq -c | awk '{ print "strace:   " $2 ", " $1 " times" }'
