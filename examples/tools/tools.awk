# The tools of an assistant that computes, and the rewards of its answers: reads and writes the lines of --reward-command
# with --max-turns. A call is replied to by its result; any other answer ends the conversation, with a reward of 1 if it
# is the reference's, else of 0.2 if the right numbers were multiplied.
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
  split(field("prompt"), n, /[+*;]/)
  multiplied = index($0, "multiply(" n[2] "," n[3] ")") > 0
  if (got == "no call")
    print field("completion") == field("answer") ? 1 : multiplied ? 0.2 : 0
  else  # a conversation that cannot go on has the reward
    printf "{\"messages\": [{\"role\": \"tool\", \"content\": \"%s\"}], \"reward\": 0}\n", got
}
