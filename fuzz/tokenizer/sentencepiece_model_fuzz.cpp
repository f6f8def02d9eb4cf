// An accepted SentencePiece model encodes any text with valid ids.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  fuzz::expect_own_errors([&] {
    const Tokenizer tokenizer(sentencepiece_spec(std::string(fuzz::text_of(data, size)), "tokenizer.model"));
    for (const std::string_view text :
         {std::string_view("It's 123  o'clock,\n \xc3\xa9\xe4\xb8\xad\xff <s>\xe2\x96\x81"),
          fuzz::text_of(data, std::min<size_t>(size, 64))}) {
      const auto ids = tokenizer.encode(text, true);
      for (const int32_t id : ids) assert(id >= 0 && id < tokenizer.vocab_size());
      tokenizer.decode(ids);
    }
  });
  return 0;
}
