# The rewards of answers that are calls of tools: 1 if the call gives what the reference's gives, 0.1 for any other call
# that works, 0 for an answer that is not a call. Reads and writes the lines of --reward-command.
function field(key) {
  if (!match($0, "\"" key "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
  return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 5)
}
function result(call,    name, numbers) {
  if (call !~ /^(add|multiply)\([0-9]+,[0-9]+\)$/) return "no call"
  name = substr(call, 1, index(call, "(") - 1)
  split(substr(call, index(call, "(") + 1), numbers, /[,)]/)
  return name == "add" ? numbers[1] + numbers[2] : numbers[1] * numbers[2]
}
{
  got = result(field("completion"))
  print got == "no call" ? 0 : got == result(field("answer")) ? 1 : 0.1
}
