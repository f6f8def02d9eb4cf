// Malformed WebDataset archives in memory. The first byte selects whether texts are read, or samples as JSON.
#include <cstdio>
#include <cstring>
#include <memory>

#include "fuzz/support.h"
#include "tests/support/bytes_in_memory.h"
#include "witan/data/tar/webdataset.h"

namespace witan {
namespace {

// Headers need the sum of their bytes, which a fuzzer cannot guess: it replaces "SUM" in a block.
std::string with_checksums(std::string_view bytes) {
  std::string mended(bytes);
  for (size_t block = 0; block + 512 <= mended.size(); block += 512) {
    if (mended.compare(block + 148, 3, "SUM") != 0) continue;
    std::memset(mended.data() + block + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(mended[block + i]);
    std::snprintf(mended.data() + block + 148, 8, "%06o", sum);
  }
  return mended;
}

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  constexpr uint64_t kMostRowBytes = 1 << 12;
  if (size == 0) return 0;
  const std::string bytes = with_checksums(fuzz::text_of(data + 1, size - 1));
  TableColumns columns{.text = "text", .row_bytes = kMostRowBytes};
  if (data[0] % 2 == 1) columns.json = {"messages"};
  fuzz::expect_own_errors([&] {
    const auto reader = read_webdataset("fuzz", std::make_unique<test::BytesInMemory>(bytes), columns);
    TableCell cell;
    while (reader->next(cell)) assert(!cell.reason.empty() || cell.text.size() <= kMostRowBytes);
  });
  return 0;
}
