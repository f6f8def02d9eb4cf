#include "witan/data/tables/random_access.h"

#include <random>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan::tables {
namespace {

// Moves windows of a file and of memory at random over more than one block.
TEST(RandomAccess, WindowsShowTheirBytes) {
  const TempFolder folder;
  std::mt19937 random(3);
  std::string bytes(1 << 20, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  put(folder / "a", bytes);
  const auto file = open_file(folder / "a"), memory = open_memory(bytes);
  EXPECT_EQ(file->size(), bytes.size());
  for (const auto* access : {file.get(), memory.get()}) {
    const uint64_t begin = 1000, end = bytes.size() - 1000;
    Window window(*access, begin, end);
    for (uint64_t at = begin; at < end;) {
      const uint64_t wanted = random() % (random() % 8 == 0 ? 600'000 : 3000), real = std::min(wanted, end - at);
      ASSERT_EQ(window.peek(wanted), std::string_view(bytes).substr(at, real));
      const uint64_t skipped = std::min<uint64_t>(random() % 20'000, end - at);
      window.skip(skipped);
      at += skipped;
      EXPECT_EQ(window.position(), at);
      EXPECT_EQ(window.left(), end - at);
    }
    EXPECT_EQ(window.peek(10), "");
  }
}

TEST(RandomAccess, ShrinkingFilesAreErrors) {
  const TempFolder folder;
  put(folder / "a", "0123456789");
  const auto file = open_file(folder / "a");
  fs::resize_file(folder / "a", 5);
  std::string out(10, '\0');
  EXPECT_THAT(message_of<IoError>([&] { file->read(0, out); }), ::testing::HasSubstr("has become shorter"));
  EXPECT_THAT(message_of<IoError>([&] { open_file(folder / "b"); }), ::testing::HasSubstr("cannot open"));
}

}  // namespace
}  // namespace witan::tables
