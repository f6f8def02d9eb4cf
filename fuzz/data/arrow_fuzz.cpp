// Malformed Arrow streams and files in memory. The first byte selects whether the texts of a column are read, or rows
// as JSON.
#include "fuzz/support.h"
#include "witan/data/arrow/arrow_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  constexpr int kMostRows = 2000;
  constexpr uint64_t kMostRowBytes = 1 << 12;
  if (size == 0) return 0;
  TableColumns columns{.text = "text", .row_bytes = kMostRowBytes};
  if (data[0] % 2 == 1) columns.json = {"text", "messages", "n"};
  fuzz::expect_own_errors([&] {
    const auto reader = read_arrow("fuzz", tables::open_memory(fuzz::text_of(data + 1, size - 1)), columns);
    TableCell cell;
    for (int rows = 0; rows < kMostRows && reader->next(cell); ++rows)
      assert(!cell.reason.empty() || cell.text.size() <= kMostRowBytes);
  });
  return 0;
}
