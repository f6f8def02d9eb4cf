// Malformed Parquet files in memory. The first byte selects whether the texts of a column are read, rows as JSON, or
// the values of a single page, in every combination of type and encoding.
#include <vector>

#include "fuzz/support.h"
#include "witan/data/parquet/parquet_file.h"
#include "witan/data/parquet/values.h"
#include "witan/data/tables/damage.h"

namespace witan {
namespace {

constexpr int kMostRows = 2000;
constexpr uint64_t kMostRowBytes = 1 << 12;

void read_rows(std::string_view file, const TableColumns& columns) {
  fuzz::expect_own_errors([&] {
    const auto reader = read_parquet("fuzz", tables::open_memory(file), columns);
    TableCell cell;
    for (int rows = 0; rows < kMostRows && reader->next(cell); ++rows)
      assert(!cell.reason.empty() || cell.text.size() <= kMostRowBytes);
  });
}

void read_page(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const auto physical = static_cast<parquet::Physical>(bytes[0] & 7);
  const int32_t encoding = bytes[1] & 15;
  bytes.remove_prefix(2);
  try {
    const auto plain = parquet::read_dictionary(0, parquet::Physical::byte_array, std::string_view("\2\0\0\0ab", 6), 1);
    const auto values = parquet::read_values(encoding, physical, bytes, plain);
    for (int i = 0; i < kMostRows; ++i) {
      [[maybe_unused]] const parquet::Value value = values->next();
      if (physical == parquet::Physical::byte_array)
        for (const char letter : value.bytes) static_cast<void>(static_cast<const volatile char&>(letter));
    }
  } catch (const tables::Damaged& damage) {
    assert(!damage.reason.empty());
  } catch (const tables::Unsupported& lacking) {
    assert(!lacking.reason.empty());
  }
}

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  if (data[0] % 3 == 0) read_rows(rest, {.text = "text", .row_bytes = kMostRowBytes});
  if (data[0] % 3 == 1) read_rows(rest, {.json = {"text", "messages", "n"}, .row_bytes = kMostRowBytes});
  if (data[0] % 3 == 2) read_page(rest);
  return 0;
}
