# Writes conversations in which an assistant computes a + b * c with two tools, one call at a time. The last answer is the
# second call, after the result of the first.
#   awk -f calls.awk > calls.jsonl
function message(role, content) { return sprintf("{\"role\": \"%s\", \"content\": \"%s\"}", role, content) }
function call(name, x, y) {
  return sprintf("{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"%s\", " \
                 "\"arguments\": {\"x\": %d, \"y\": %d}}}]}", name, x, y)
}
BEGIN {
  srand(3)
  for (row = 0; row < 4000; ++row) {
    a = int(10 * rand()); b = int(10 * rand()); c = int(10 * rand())
    printf "{\"messages\": [%s, %s, %s, %s]}\n", message("user", a "+" b "*" c), call("multiply", b, c),
           message("tool", b * c), call("add", a, b * c)
  }
}
