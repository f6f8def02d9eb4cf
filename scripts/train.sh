#!/usr/bin/env bash
# Runs a training command for make: scripts/train.sh PROGRAM ARGUMENT...
# Ctrl-C reaches make too, which waits for this script and then ends by that signal itself: whoever started make sees
# the status of an interruption. But of a recipe that ends with another status than 0 make would first print
# "*** [Makefile:13: train] Error 130" below the program's own last line. So this script ends with 0 where it was
# signalled itself and the program ended as it does after a signal (130 interrupted, 75 preempted). A program that
# failed, or that alone was signalled, keeps its status, and make its message.
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

# In the background, as a trap runs at once only while bash waits by itself.
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
