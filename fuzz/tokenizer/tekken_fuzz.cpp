// A tekken.json gives a tokenizer or one of our errors.
#include "fuzz/support.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  fuzz::expect_own_errors([&] {
    const Tokenizer tokenizer(parse_tekken(fuzz::text_of(data, size), "tekken.json"));
    for (const int32_t id : tokenizer.encode("It's 123 o'clock", true)) assert(id >= 0 && id < tokenizer.vocab_size());
  });
  return 0;
}
