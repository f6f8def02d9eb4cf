// MDS shards of hostile bytes, from memory. The first byte says what is read: the texts of a column, or rows as JSON.
#include <algorithm>
#include <cstring>
#include <memory>

#include "fuzz/support.h"
#include "witan/data/mds/mds_reader.h"

namespace witan {
namespace {

class ShardInMemory final : public ByteReader {
 public:
  explicit ShardInMemory(std::string_view bytes) : bytes_(bytes) {}

  size_t read(char* out, size_t bytes) override {
    const size_t n = std::min(bytes, bytes_.size() - at_);
    if (n > 0) std::memcpy(out, bytes_.data() + at_, n);
    at_ += n;
    return n;
  }
  uint64_t offset() const override { return at_; }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  constexpr uint64_t kMostRowBytes = 64;
  if (size == 0) return 0;
  TableColumns columns{.text = "text", .row_bytes = kMostRowBytes};
  if (data[0] % 2 == 1) columns.json = {"id", "messages", "tools"};
  fuzz::expect_own_errors([&] {
    const auto reader = read_mds("fuzz", std::make_unique<ShardInMemory>(fuzz::text_of(data + 1, size - 1)), columns);
    TableCell cell;
    while (reader->next(cell)) assert(!cell.reason.empty() || cell.text.size() <= kMostRowBytes);
  });
  return 0;
}
