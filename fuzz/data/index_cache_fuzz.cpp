// A cached file of Megatron-Core's indices. Its hash is inserted, so that changed bytes pass that check: arrays of an
// accepted file must lie within it.
#include <cstring>
#include <string>

#include "fuzz/support.h"
#include "witan/base/hash.h"
#include "witan/data/megatron/index_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  constexpr size_t kHeader = 64, kArraysAt = 16, kHashAt = 24;
  static const fuzz::Folder folder;
  static const std::string key = "key", name = "train-" + hash_hex(key.data(), key.size()) + ".index";
  std::string file(fuzz::text_of(data, size));
  if (size >= kHeader) {
    Hasher hasher;
    hasher.update(file.data() + kHeader, size - kHeader);
    const uint64_t hash = hasher.low64();
    std::memcpy(file.data() + kHashAt, &hash, sizeof hash);
  }
  folder.write(name.c_str(), file);
  fuzz::expect_own_errors([&] {
    const megatron::IndexFile opened(folder / ".", "train", key,
                                     []() -> megatron::IndexFile::Arrays { throw DataError("it is not taken"); });
    uint64_t arrays = 0;
    unsigned sum = 0;
    std::memcpy(&arrays, file.data() + kArraysAt, sizeof arrays);
    for (uint64_t i = 0; i < arrays; ++i)
      for (const uint8_t byte : opened.array<uint8_t>(i)) sum += byte;
    assert(sum <= 255 * size);
  });
  return 0;
}
