# Sourced by scripts that show how far a long command is. (awk will not do: Debian's buffers what it reads from a pipe.)
# shellcheck shell=bash

# each_line HANDLE SAY: calls HANDLE LINE for each line of standard input, and SAY every 30 seconds, also while no line
# comes.
each_line() {
  local line status next=$((SECONDS + 30))
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status == 0)); then
      "$1" "$line"
    elif ((status <= 128)); then  # the end; a timeout is more
      [[ -z $line ]] || "$1" "$line"
      return 0
    fi
    if ((SECONDS >= next)); then
      next=$((SECONDS + 30))
      "$2"
    fi
  done
}
