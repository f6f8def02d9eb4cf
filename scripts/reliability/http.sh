#!/usr/bin/env bash
# A server under hostile clients, all on this machine (http_battery.py): request smuggling, bodies without a key,
# withheld bodies, slow connections, prompts of megabytes, many requests.
#   scripts/reliability/http.sh WITAN [REQUESTS [SEED]]
set -euo pipefail

if ! command -v python3 >/dev/null; then
  echo "http: needs python3; skipped"
  exit 0
fi
witan=$(realpath "$1")
requests=${2:-100000}
seed=${3:-$(date +%s)}
steps=5
work=$(mktemp -d)
battery=$(realpath "$(dirname "$0")/http_battery.py")
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
echo "http: $requests requests, seed $seed"

write_text
(train small) >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
WITAN_API_KEY=secret "$witan" serve --runs-folder "$work/runs" --run small --port 0 --context 256 --threads 1 \
  >"$work/said" 2>&1 &
server=$!
trap 'kill -KILL "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
port=""
until [[ -n $port ]]; do
  kill -0 "$server" 2>/dev/null || { cat "$work/said" >&2; exit 1; }
  port=$(sed -nE 's/^listening at .*:([0-9]+) .*/\1/p' "$work/said")
  sleep 0.05
done
timeout 1200 python3 "$battery" "$port" "$server" secret "$requests" "$seed" || { cat "$work/said" >&2; exit 1; }
kill -TERM "$server"
code=0
wait "$server" || code=$?
if ((code != 0)) || [[ $(tail -1 "$work/said") != stopped ]]; then
  cat "$work/said" >&2
  echo "http: the server ended with exit code $code" >&2
  exit 1
fi
echo "http: the server stopped on request"
