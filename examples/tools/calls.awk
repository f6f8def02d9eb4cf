# Writes conversations about a + b * c. With -v guesses=1 an assistant computes with two tools, one call at a time, and
# guesses the numbers of its calls: it multiplies any two of the three, and adds any one to the result. Otherwise there
# are only the question and the right answer.
#   awk -v guesses=1 -f calls.awk > guesses.jsonl
#   awk -f calls.awk > sums.jsonl
function message(role, content) { return sprintf("{\"role\": \"%s\", \"content\": \"%s\"}", role, content) }
function call(name, x, y) {
  return sprintf("{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"%s\", " \
                 "\"arguments\": {\"x\": %d, \"y\": %d}}}]}", name, x, y)
}
function any(least, most) { return least + int((most - least + 1) * rand()) }
BEGIN {
  srand(3)
  for (row = 0; row < 20000; ++row) {
    for (i = 1; i <= 3; ++i) n[i] = any(0, 9)
    question = message("user", n[1] "+" n[2] "*" n[3])
    if (!guesses) {
      printf "{\"messages\": [%s, %s]}\n", question, message("assistant", n[1] + n[2] * n[3])
      continue
    }
    left = any(1, 2); right = any(left + 1, 3); other = any(1, 3)
    product = n[left] * n[right]
    printf "{\"messages\": [%s, %s, %s, %s, %s, %s]}\n", question,
           call("multiply", n[left], n[right]), message("tool", product),
           call("add", n[other], product), message("tool", n[other] + product),
           message("assistant", n[other] + product)
  }
}
