#include "witan/data/rows/disk_room.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(DiskRoom, RefusesBeforeTheDiskIsFull) {
  const TempFolder folder;
  require_room(folder.path(), 1000, "runs");
  const std::string message = message_of<DiskFullError>(
      [&] { require_room(folder.path(), uint64_t{1} << 60, "sorted runs", ", or give --temp another folder"); });
  for (const char* piece : {"sorted runs take about 1024", "PiB, and ", "has room for ",
                            ": free some space, or give --temp another folder and give the same command again"})
    EXPECT_THAT(message, ::testing::HasSubstr(piece));
}

TEST(DiskRoom, CountsWhatIsThereAlready) {
  const TempFolder folder;
  put(folder / "run-0", std::string(1 << 20, 'x'));
  const uint64_t free = free_disk_bytes(folder.path());
  if (free < uint64_t{1} << 30) GTEST_SKIP() << "the disk is nearly full";
  constexpr uint64_t kOthers = 64 << 20;  // what others may write meanwhile
  EXPECT_THROW(require_room(folder.path(), free + kOthers + (2 << 20), "runs"), DiskFullError);
  fs::resize_file(folder / "run-0", uint64_t{4} << 30);  // sparse
  require_room(folder.path(), free + kOthers, "runs");
}

TEST(DiskRoom, TellsDisksApart) {
  const TempFolder folder;
  EXPECT_TRUE(on_one_disk(folder.path(), folder.path()));
  EXPECT_FALSE(on_one_disk(folder.path(), "/proc"));
}

}  // namespace
}  // namespace witan
