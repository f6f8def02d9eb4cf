// The journal of a file fetched in parts. The recorded ranges must lie within the file, and the missing ones are the
// rest.
#include "fuzz/support.h"
#include "witan/fetch/download.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::fetch;
  constexpr uint64_t kBytes = 1000;
  static const fuzz::Folder folder;
  static const fs::path part = folder.write("a.part", std::string(kBytes, '\0'));
  folder.write("a.ranges", fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const uint64_t there = PartFile::bytes_there(folder / ".", "a", kBytes);
    PartFile file(folder / ".", "a", kBytes);
    uint64_t at = 0, missing = 0;
    for (const ByteRange& range : file.missing()) {
      assert(range.begin >= at && range.end > range.begin && range.end <= kBytes);
      at = range.end;
      missing += range.size();
    }
    assert(there + missing == kBytes);
    file.record({missing % kBytes, kBytes});
  });
  return 0;
}
