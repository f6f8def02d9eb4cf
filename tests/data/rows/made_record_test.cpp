#include "witan/data/rows/made_record.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

class MadeRecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    put(output_, "rows");
    put(list_, "a list");
    MadeRecord(output_).write(key_, {{"rows", 3}}, {output_}, {list_, folder_ / "none.jsonl"});
  }
  void require_free() const { MadeRecord(output_).require_free({output_}, {list_}); }

  TempFolder folder_;
  const fs::path output_ = folder_ / "out/a.jsonl", list_ = folder_ / "out/a.quarantine.jsonl";
  const nlohmann::json key_ = {{"seed", 1}};
};

TEST_F(MadeRecordTest, RecognisesOutputOfTheSameCommand) {
  EXPECT_EQ(MadeRecord(output_).find(key_), (nlohmann::json{{"rows", 3}}));
  EXPECT_TRUE(fs::exists(folder_ / "out/.a.made.json"));
  EXPECT_TRUE(MadeRecord(output_).find({{"seed", 2}}).is_null());
  EXPECT_TRUE(MadeRecord(folder_ / "out/b").find(key_).is_null());
  fs::rename(folder_ / "out", folder_ / "moved");
  EXPECT_FALSE(MadeRecord(folder_ / "moved/a.jsonl").find(key_).is_null()) << "removed with the folder";
  put(folder_ / "moved/a.jsonl", "other rows");
  EXPECT_TRUE(MadeRecord(folder_ / "moved/a.jsonl").find(key_).is_null());
}

TEST_F(MadeRecordTest, NeverOverwritesOutputs) {
  EXPECT_THAT(message_of<ConfigError>([&] { require_free(); }), HasSubstr("a.jsonl exists already"));
  fs::remove(output_);
  EXPECT_NO_THROW(require_free()) << "its own list may be replaced";
  put(list_, "a list of the user's");
  EXPECT_THAT(message_of<ConfigError>([&] { require_free(); }), HasSubstr("a.quarantine.jsonl exists already"));
}

TEST_F(MadeRecordTest, OwnsLeftoversOfAFailedCommand) {
  fs::remove_all(folder_ / "out");
  put(list_, "unusable rows");
  MadeRecord(output_).write(nullptr, nullptr, {}, {list_});
  EXPECT_NO_THROW(require_free());
  EXPECT_TRUE(MadeRecord(output_).find(nullptr).is_null());
}

TEST_F(MadeRecordTest, IgnoresADamagedRecord) {
  const fs::path path = folder_ / "out/.a.made.json";
  const std::string whole = read_file(path);
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string("[]"), std::string("{}"), std::string()}) {
    put(path, text);
    EXPECT_TRUE(MadeRecord(output_).find(key_).is_null()) << text;
    EXPECT_THROW(require_free(), ConfigError);
  }
}

TEST_F(MadeRecordTest, ErrorsNameAnOutputThatIsASource) {
  const std::vector<Source> sources = find_sources({output_}).files;
  EXPECT_THAT(message_of<UsageError>([&] {
                require_no_source({"", list_, folder_ / "out/../out/a.jsonl"}, sources);
              }),
              HasSubstr("a.jsonl is one of the inputs"));
  EXPECT_NO_THROW(require_no_source({list_, folder_ / "new"}, sources));
}

}  // namespace
}  // namespace witan
