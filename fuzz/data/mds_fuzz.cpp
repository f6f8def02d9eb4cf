// Malformed MDS shards in memory. The first byte selects whether the texts of a column are read, or rows as JSON.
#include <memory>

#include "fuzz/support.h"
#include "tests/support/bytes_in_memory.h"
#include "witan/data/mds/mds_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  constexpr uint64_t kMostRowBytes = 64;
  if (size == 0) return 0;
  TableColumns columns{.text = "text", .row_bytes = kMostRowBytes};
  if (data[0] % 2 == 1) columns.json = {"id", "messages", "tools"};
  fuzz::expect_own_errors([&] {
    const auto reader = read_mds(
        "fuzz", std::make_unique<test::BytesInMemory>(std::string(fuzz::text_of(data + 1, size - 1))), columns);
    TableCell cell;
    while (reader->next(cell)) assert(!cell.reason.empty() || cell.text.size() <= kMostRowBytes);
  });
  return 0;
}
