// Token files of OLMo and NumPy.
#include "fuzz/support.h"
#include "witan/data/datasets/token_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  const fs::path path = folder.write("a.npy", fuzz::text_of(data, size));
  for (const std::optional<int32_t> end_of_text : {std::optional<int32_t>(), std::optional<int32_t>(0)})
    fuzz::expect_own_errors([&] { fuzz::read_everywhere(NpyTokens(path, end_of_text)); });
  return 0;
}
