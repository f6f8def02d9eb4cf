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

TEST_F(WorkFolderTest, DropsATornEntry) {
  { WorkFolder(path(), {{"seed", 1}}).record({{"run", 0}}); }
  const std::string whole = read_file(path() / "journal.jsonl");
  put(path() / "journal.jsonl", whole + "{\"run\": 1");
  WorkFolder work(path(), {{"seed", 1}});
  EXPECT_EQ(work.journal().size(), 1U);
  work.record({{"run", 2}});
  EXPECT_EQ(read_file(path() / "journal.jsonl"), whole + "{\"run\":2}\n");
}

TEST_F(WorkFolderTest, BeginsAnewForAnotherKey) {
  {
    WorkFolder work(path(), {{"seed", 1}});
    work.record({{"run", 0}});
    put(work / "run-0", "rows");
  }
  const WorkFolder work(path(), {{"seed", 2}});
  EXPECT_TRUE(work.journal().empty());
  EXPECT_FALSE(fs::exists(work / "run-0"));
}

TEST_F(WorkFolderTest, IsOneProcessesAtATime) {
  const WorkFolder work(path(), {{"seed", 1}});
  EXPECT_THAT(message_of<DataError>([&] {
                const WorkFolder other(path(), {{"seed", 1}});
              }),
              HasSubstr("another process is writing there"));
}

}  // namespace
}  // namespace witan
