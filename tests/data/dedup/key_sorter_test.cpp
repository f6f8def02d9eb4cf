#include "witan/data/dedup/key_sorter.h"

#include <algorithm>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

std::vector<KeyedDocument> sorted_by(KeySorter& sorter) {
  std::vector<KeyedDocument> out;
  for (KeyedDocument item; sorter.next(item);) out.push_back(item);
  return out;
}

TEST(KeySorter, SortsEquallyInMemoryAndOnDisk) {
  TempFolder folder;
  const Philox random(7, 1);
  for (const int64_t count : {0, 1, 2700, 2731, 40000}) {
    KeySorter small(folder.path(), 64 << 10), large(folder.path(), 64 << 20);
    std::vector<KeyedDocument> expected;
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<uint64_t>(i);
      const KeyedDocument item{{random.below(50, 2 * at), random.below(1000, 2 * at + 1)}, i};
      expected.push_back(item);
      small.add(item);
      large.add(item);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(small.size(), count);
    EXPECT_EQ(sorted_by(small), expected);
    EXPECT_EQ(sorted_by(large), expected);
    EXPECT_EQ(large.spilled(), 0u);
    EXPECT_EQ(small.spilled(), count * sizeof(KeyedDocument) < 64 << 10 ? 0u : count * sizeof(KeyedDocument));
  }
  EXPECT_TRUE(fs::is_empty(folder.path())) << "the temporary file is unlinked";
}

TEST(KeySorter, ErrorsNameUnwritableFolders) {
  KeySorter sorter("/nowhere/at/all", 64 << 10);
  const auto fill = [&] {
    for (int64_t i = 0; i < 5000; ++i) sorter.add({{1, 1}, i});
  };
  const std::string message = message_of<IoError>(fill);
  EXPECT_THAT(message, ::testing::HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(message, ::testing::HasSubstr("--temporary"));
}

}  // namespace
}  // namespace witan
