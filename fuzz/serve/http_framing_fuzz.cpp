// A request's head ends at the same place however its bytes arrive, all of its lines end with CRLF, and its target and
// framing are accepted or refused.
#include "fuzz/support.h"
#include "witan/serve/http_framing.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::serve;
  const std::string_view text = fuzz::text_of(data, size);
  HeadScanner whole, bytes;
  const auto state = whole.scan(text);
  auto piecewise = HeadScanner::State::more;
  for (size_t end = 0; end <= size && piecewise == HeadScanner::State::more; ++end)
    piecewise = bytes.scan(text.substr(0, end));
  assert(piecewise == state);
  if (state == HeadScanner::State::complete) {
    assert(bytes.begin() == whole.begin() && bytes.end() == whole.end() && whole.end() <= size);
    const std::string_view head = text.substr(whole.begin(), whole.end() - whole.begin());
    assert(head.ends_with("\r\n\r\n") && head.find("\r\n\r\n") == head.size() - 4);
    for (size_t at = 0; at < head.size(); ++at) assert(head[at] != '\n' || head[at - 1] == '\r');
  }
  if (const auto target = split_target(text.substr(0, text.find(' '))))
    assert(target->path.starts_with('/') || target->path == "*");
  const size_t half = size / 2;
  for (const FramingLines& lines :
       {FramingLines{false, {text}, {}, {text.substr(half)}}, FramingLines{true, {}, {text}, {}},
        FramingLines{false, {""}, {}, {text.substr(0, half), text}}})
    if (const auto refusal = framing_error(lines))
      assert((refusal->status == 400 || refusal->status == 501) && !refusal->message.empty());
  return 0;
}
