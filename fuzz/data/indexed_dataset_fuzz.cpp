// The first two bytes are the length of the .idx; the rest is the .bin. All of a pair that opens must be readable.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/data/datasets/indexed_dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  if (size < 2) return 0;
  const std::string_view rest = fuzz::text_of(data + 2, size - 2);
  const size_t index = std::min<size_t>(data[0] | data[1] << 8, rest.size());
  folder.write("a.idx", rest.substr(0, index));
  folder.write("a.bin", rest.substr(index));
  fuzz::expect_own_errors([&] { fuzz::read_everywhere(IndexedDataset(folder / "a")); });
  return 0;
}
