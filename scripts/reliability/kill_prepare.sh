#!/usr/bin/env bash
# Kills `witan data prepare` at random times (SIGKILL), starts it again each time, and compares the final output with
# that of an undisturbed run, byte for byte: tokens, index, unusable rows.
#   scripts/reliability/kill_prepare.sh WITAN [KILLS [SEED]]
# Preparations that finish before all kills are made are compared, and a new one is started.
set -euo pipefail

witan=$(realpath "$1")
kills=${2:-200}
seed=${3:-$(date +%s)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=$seed
export XDG_CACHE_HOME=$work/cache
echo "kill_prepare: $kills kills, seed $seed"

# Rows of several kinds of files, some of them unusable.
mkdir "$work/rows"
words() { for ((i = 0; i < 4000; i++)); do echo "$RANDOM years ago $RANDOM people wrote $RANDOM letters to $RANDOM"; done; }
for part in 0 1 2 3 4 5; do
  for times in 1 2 3 4; do
    words | awk -v n=$((times * 40)) '{ line = line " " $0 }
      NR % n == 0 { printf "{\"text\": \"%s\"}\n", line; line = "" }
      NR % 1900 == 0 { print "broken row" }'
  done >"$work/rows/$part.jsonl"
done
for part in 1 4; do gzip "$work/rows/$part.jsonl"; done
"$witan" tokenizer train "$work/rows/0.jsonl" --output "$work/tokenizer.json" --vocab-size 400 >"$work/said" 2>&1

# Prepares into the folder $1, in small pieces, so that kills fall between many of them.
prepare() {
  mkdir -p "$work/$1"
  exec "$witan" data prepare --input "$work/rows" --output-prefix "$work/$1/out" --tokenizer "$work/tokenizer.json" \
    --append-eod --piece-bytes 65536 --workers $((RANDOM % 4 + 1))
}
same() {
  local suffix
  for suffix in .bin .idx .quarantine.jsonl; do
    cmp "$work/whole/out_text_document$suffix" "$work/killed/out_text_document$suffix" || return 1
  done
  if compgen -G "$work/killed/*.partial.*" >/dev/null || compgen -G "$work/killed/.tmp-*" >/dev/null; then
    ls -A "$work/killed" >&2
    return 1
  fi
}

started=${EPOCHREALTIME/./}
(prepare whole) >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
longest=$(((${EPOCHREALTIME/./} - started) * 7 / 10000)) # ms that a process lives at most: most of a whole one

made=0 ended=0 starts=0 continued=0
begun=$(date +%s)
while ((made < kills)); do
  if [[ -f $work/killed/out_text_document.partial.json ]]; then continued=$((continued + 1)); fi
  (prepare killed) >"$work/said" 2>&1 &
  process=$!
  starts=$((starts + 1))
  life=$((RANDOM % longest))
  sleep "$(printf '%d.%03d' $((life / 1000)) $((life % 1000)))"
  if kill -KILL "$process" 2>/dev/null; then :; fi
  code=0
  wait "$process" 2>/dev/null || code=$?
  if ((code == 137)); then
    made=$((made + 1))
    if ((made % 50 == 0)); then echo "kill_prepare: $made kills"; fi
  elif ((code == 0)); then
    same || { echo "kill_prepare: after $made kills (seed $seed) the shards differ" >&2; exit 1; }
    ended=$((ended + 1))
    rm -rf "$work/killed"
  else
    cat "$work/said" >&2
    echo "kill_prepare: after $made kills (seed $seed) it did not continue: exit code $code" >&2
    exit 1
  fi
done
if [[ -d $work/killed ]]; then
  (prepare killed) >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
  same || { echo "kill_prepare: after $made kills (seed $seed) the shards differ" >&2; exit 1; }
  ended=$((ended + 1))
fi
echo "kill_prepare: $made kills in $starts starts ($continued of them continued), $(($(date +%s) - begun)) s;" \
  "$ended preparations ended byte for byte as the undisturbed one"
