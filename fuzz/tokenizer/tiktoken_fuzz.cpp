// An accepted rank file encodes any text with valid ids. Bytes without a rank get one, so that short inputs are
// complete files.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  fuzz::expect_own_errors([&] {
    TokenizerSpec spec = parse_tiktoken(fuzz::text_of(data, size), "ranks.tiktoken", "cl100k");
    bool known[256] = {};
    for (const std::string& token : spec.tokens)
      if (token.size() == 1) known[static_cast<unsigned char>(token[0])] = true;
    for (int byte = 0; byte < 256; ++byte)
      if (!known[byte]) spec.tokens.emplace_back(1, static_cast<char>(byte));
    const Tokenizer tokenizer(std::move(spec));
    const auto ids = tokenizer.encode(fuzz::text_of(data, std::min<size_t>(size, 256)));
    for (const int32_t id : ids) assert(id >= 0 && id < tokenizer.vocab_size());
    assert(tokenizer.decode(ids) == fuzz::text_of(data, std::min<size_t>(size, 256)));
  });
  return 0;
}
