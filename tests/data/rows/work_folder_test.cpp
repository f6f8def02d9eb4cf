#include "witan/data/rows/work_folder.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class WorkFolderTest : public ::testing::Test {
 protected:
  fs::path path() const { return folder_ / "out/.work"; }
  TempFolder folder_;
};

TEST_F(WorkFolderTest, KeepsAJournal) {
  {
    WorkFolder work(path(), {{"seed", 1}});
    EXPECT_TRUE(work.journal().empty());
    work.record({{"run", 0}});
    work.record({{"run", 1}});
    put(work / "run-0", "rows");
  }
  WorkFolder work(path(), {{"seed", 1}});
  EXPECT_THAT(work.journal(), ::testing::ElementsAre(json{{"run", 0}}, json{{"run", 1}}));
  EXPECT_TRUE(fs::exists(work / "run-0"));
  work.remove();
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(WorkFolderTest, DropsATruncatedEntry) {
  { WorkFolder(path(), {{"seed", 1}}).record({{"run", 0}}); }
  const std::string whole = read_file(path() / "journal.jsonl");
  put(path() / "journal.jsonl", whole + "{\"run\": 1");
  WorkFolder work(path(), {{"seed", 1}});
  EXPECT_EQ(work.journal().size(), 1U);
  work.record({{"run", 2}});
  EXPECT_EQ(read_file(path() / "journal.jsonl"), whole + "{\"run\":2}\n");
}

TEST_F(WorkFolderTest, StartsOverForAnotherKey) {
  {
    WorkFolder work(path(), {{"seed", 1}});
    work.record({{"run", 0}});
    put(work / "run-0", "rows");
  }
  const WorkFolder work(path(), {{"seed", 2}});
  EXPECT_TRUE(work.journal().empty());
  EXPECT_FALSE(fs::exists(work / "run-0"));
}

TEST_F(WorkFolderTest, IsUsedByOneProcessAtATime) {
  const WorkFolder work(path(), {{"seed", 1}});
  EXPECT_THAT(message_of<DataError>([&] {
                const WorkFolder other(path(), {{"seed", 1}});
              }),
              HasSubstr("another process is writing there"));
}

TEST(DiskRoom, RefusesBeforeTheDiskIsFull) {
  const TempFolder folder;
  require_room(folder.path(), 1000, "runs");
  const std::string message = message_of<DiskFullError>(
      [&] { require_room(folder.path(), uint64_t{1} << 60, "sorted runs", ", or give --temp another folder"); });
  for (const char* piece : {"sorted runs take about 1024", "PiB, and ", "has room for ",
                            ": free some space, or give --temp another folder and give the same command again"})
    EXPECT_THAT(message, ::testing::HasSubstr(piece));
}

TEST(DiskRoom, CountsExistingFiles) {
  const TempFolder folder;
  put(folder / "run-0", std::string(1 << 20, 'x'));
  const uint64_t free = free_disk_bytes(folder.path());
  if (free < uint64_t{1} << 30) GTEST_SKIP() << "the disk is nearly full";
  constexpr uint64_t kOthers = 64 << 20;  // what others may write meanwhile
  EXPECT_THROW(require_room(folder.path(), free + kOthers + (2 << 20), "runs"), DiskFullError);
  fs::resize_file(folder / "run-0", uint64_t{4} << 30);  // sparse
  require_room(folder.path(), free + kOthers, "runs");
}

TEST(DiskRoom, DistinguishesDisks) {
  const TempFolder folder;
  EXPECT_TRUE(on_one_disk(folder.path(), folder.path()));
  EXPECT_FALSE(on_one_disk(folder.path(), "/proc"));
}

}  // namespace
}  // namespace witan
