// gzip, zstd and plain files as streams; at most 64 KiB are expanded.
#include <vector>

#include "fuzz/support.h"
#include "witan/data/text/decompress.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  static std::vector<char> out(1 << 12);
  const fs::path path = folder.write("a", fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const auto reader = open_bytes(path);
    uint64_t total = 0;
    for (size_t got = 1; got > 0 && total < (1 << 16); total += got) {
      got = reader->read(out.data(), out.size());
      assert(got <= out.size() && reader->offset() <= size);
    }
  });
  return 0;
}
