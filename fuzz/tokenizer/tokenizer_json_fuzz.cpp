// An accepted tokenizer encodes any text with valid ids. Bytes without a token get one, so that short inputs are
// complete tokenizers.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  fuzz::expect_own_errors([&] {
    TokenizerSpec spec = parse_tokenizer_json(fuzz::text_of(data, size), "tokenizer.json");
    bool known[256] = {};
    for (const std::string& token : spec.tokens)
      if (token.size() == 1) known[static_cast<unsigned char>(token[0])] = true;
    for (int byte = 0; byte < 256; ++byte)
      if (!known[byte]) spec.tokens.emplace_back(1, static_cast<char>(byte));
    const Tokenizer tokenizer(std::move(spec));
    for (const std::string_view text : {std::string_view("It's 123 o'clock,\n\n  \xc3\xa9\xe4\xb8\xad\xff <s>"),
                                        fuzz::text_of(data, std::min<size_t>(size, 64))}) {
      const auto ids = tokenizer.encode(text);
      for (const int32_t id : ids) assert(id >= 0 && id < tokenizer.vocab_size());
      tokenizer.decode(ids);
    }
  });
  return 0;
}
