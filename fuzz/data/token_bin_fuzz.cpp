// llm.c's token files. Only three words of the 1024-byte header matter: inputs contain just those, to be short.
#include <cstring>
#include <string>

#include "fuzz/support.h"
#include "witan/data/datasets/token_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  constexpr size_t kWords = 12, kHeader = 1024;
  if (size < kWords) return 0;
  std::string file(kHeader, '\0');
  std::memcpy(file.data(), data, kWords);
  file += fuzz::text_of(data + kWords, size - kWords);
  const fs::path path = folder.write("a.bin", file);
  for (const std::optional<int32_t> end_of_text : {std::optional<int32_t>(), std::optional<int32_t>(0)})
    fuzz::expect_own_errors([&] { fuzz::read_everywhere(TokenBin(path, end_of_text)); });
  return 0;
}
