# Writes conversations about four digits. Their answers have the digits in order or, with -v shuffled=1, in any order.
#   awk -f problems.awk > sorted.jsonl
BEGIN {
  digits = 4
  srand(shuffled ? 1 : 2)
  for (row = 0; row < 8000; ++row) {
    prompt = answer = ""
    for (i = 1; i <= digits; ++i) prompt = prompt (d[i] = int(10 * rand()))
    for (i = digits; i > 1; --i) {
      other = 1 + int(i * rand())
      if (!shuffled)  # the largest of those that are left comes last
        for (k = other = i; k > 0; --k) if (d[k] > d[other]) other = k
      digit = d[i]; d[i] = d[other]; d[other] = digit
    }
    for (i = 1; i <= digits; ++i) answer = answer d[i]
    message = "{\"role\": \"%s\", \"content\": \"%s\"}"
    printf "{\"messages\": [" message ", " message "]}\n", "user", prompt "=", "assistant", answer
  }
}
