// A run of an external sort. If it can be measured, it can be loaded, whole and in slices, with the same rows.
#include "fuzz/support.h"
#include "witan/data/rows/sorted_run.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  const fs::path path = folder.write("run-0", fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const SortedRuns runs({path});
    uint64_t held = 0;
    for (const uint64_t bytes : runs.measure()) held += bytes;
    size_t rows = 0, letters = 0;
    unsigned sum = 0;
    for (uint32_t range = 0; range < kKeyRanges; range += kKeyRanges / 2) {
      const RunSlice slice = runs.load(range, range + kKeyRanges / 2);
      rows += slice.rows.size();
      for (size_t i = 0; i < slice.rows.size(); ++i)
        for (const char letter : slice.row(i)) sum += static_cast<unsigned char>(letter), ++letters;
    }
    assert(sum <= 255 * size && held <= size + rows * kRowOverhead);
    assert(letters + rows * kRowOverhead == held || letters < size);  // unsorted keys omit rows
  });
  return 0;
}
