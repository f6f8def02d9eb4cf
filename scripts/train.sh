#!/usr/bin/env bash
# Runs a training command for make: scripts/train.sh PROGRAM ARGUMENT...
# Ctrl-C reaches make too, which waits for this script and then ends by that signal, so that its caller sees the status
# of an interruption. But if a recipe ends with a status other than 0, make first prints "*** [Makefile:13: train] Error
# 130" below the program's own last line. So this script exits with 0 if it was signalled itself and the program ended
# as after a signal (130 interrupted, 75 preempted). If the program failed, or only the program was signalled, its
# status is kept, and make prints its message.
set -uo pipefail

signalled=false
program=
pending=  # a signal to pass on, which may come before there is a program
# shellcheck disable=SC2317  # traps call it
forward() {
  signalled=true
  pending=$1
  [[ -z $program ]] || kill -s "$1" "$program" 2>/dev/null || true
}
trap 'signalled=true' INT  # the terminal sends it to the program too; a second one would make it quit without saving
trap 'forward TERM' TERM
trap 'forward HUP' HUP

# In the background, since bash runs a trap at once only while it waits.
"$@" <&0 &
program=$!
[[ -z $pending ]] || forward "$pending"  # perhaps a second time, which changes nothing
while :; do
  wait "$program"
  status=$?
  kill -0 "$program" 2>/dev/null || break  # wait ends early for a signal that is trapped
done

if $signalled && ((status == 130 || status == 75)); then exit 0; fi
exit "$status"
