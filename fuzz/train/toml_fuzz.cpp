// An accepted configuration must survive writing and reading; only one in eight is checked, since that takes most of
// the time.
#include "fuzz/support.h"
#include "witan/train/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static RunConfig config;
  static const Fields fields = config.fields();
  config = RunConfig();
  fuzz::expect_own_errors([&] {
    parse_toml(fields, fuzz::text_of(data, size), "config.toml");
    if (size % 8 != 0) return;
    const std::string written = write_toml(fields);
    config = RunConfig();
    parse_toml(fields, written, "written.toml");
    assert(write_toml(fields) == written);
    config.model.vocab_size = config.model.vocab_size == 0 ? 300 : config.model.vocab_size;
    if (config.parallel.ranks == 0) config.parallel.ranks = 1;
    config.validate();
  });
  return 0;
}
