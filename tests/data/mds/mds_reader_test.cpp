#include "witan/data/mds/mds_reader.h"

#include <algorithm>

#include "data/data_support.h"
#include "data/tables/golden_tables.h"
#include "support/bytes_in_memory.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MdsReader, ReadsTextsOfGoldenShards) {
  for (const char* name : {"text.mds", "text.mds.zstd"}) {
    const auto reader = open_mds(golden_table(name), {.text = "text"});
    EXPECT_EQ(texts_of(*reader), (Json{"first", "", "Größe 专家", std::string(300, 'x')})) << name;
    EXPECT_EQ(reader->offset(), fs::file_size(golden_table(name)));
  }
}

TEST(MdsReader, WritesRows) {
  const Json rows = rows_of(*open_mds(golden_table("chat.mds"), {.json = {"id", "messages", "tools", "other"}}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], parse_json(R"({"id": 0, "tools": "none", "messages": [{"role": "user", "content": "hi"},
                                                                            {"role": "assistant", "content": "yo"}]})",
                                "row"));
  EXPECT_EQ(rows[1]["messages"][0]["content"], "\"no\"");
}

TEST(MdsReader, RefusesColumnsAndLongSamples) {
  EXPECT_THAT(message_of<DataError>([] { open_mds(golden_table("text.mds"), {.text = "txt"}); }),
              HasSubstr("there is no column txt (did you mean text?)"));
  EXPECT_THAT(message_of<DataError>([] { open_mds(golden_table("text.mds"), {.text = "id"}); }),
              HasSubstr("the column id is encoded as int, not as text"));
  const auto reader = open_mds(golden_table("text.mds"), {.text = "text", .row_bytes = 16});
  TableCell cell;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader->next(cell));
    EXPECT_EQ(cell.reason, "");
  }
  ASSERT_TRUE(reader->next(cell));
  EXPECT_THAT(cell.reason, HasSubstr("is longer than"));
  EXPECT_FALSE(reader->next(cell));
}

void read_all_texts(const std::string& bytes) {
  const auto reader = read_mds("a.mds", std::make_unique<test::BytesInMemory>(bytes), {.text = "text"});
  for (TableCell cell; reader->next(cell);) EXPECT_LE(cell.text.size(), bytes.size());
}

std::string u32(uint64_t value) {
  const auto narrow = static_cast<uint32_t>(value);
  return {reinterpret_cast<const char*>(&narrow), sizeof narrow};
}

// Samples with a column `text` whose size is declared in the form `declared`, with these raw bytes.
std::string shard_of(const std::vector<std::string>& samples, const std::string& declared = "null") {
  const std::string description = R"({"format": "mds", "column_names": ["text"], "column_encodings": ["str"],)"
                                  R"( "column_sizes": [)" +
                                  declared + "]}";
  std::string head = u32(samples.size()), bodies;
  const uint64_t first = 4 + 4 * (samples.size() + 1) + description.size();
  head += u32(first);
  for (const std::string& sample : samples) head += u32(first + (bodies += sample).size());
  return head + description + bodies;
}

std::string text_sample(const std::string& text) {
  return u32(text.size()) + text;
}

// Texts, and in brackets the reasons for unusable samples.
std::vector<std::string> made_texts(const std::string& shard, uint64_t row_bytes = 100) {
  const auto reader =
      read_mds("a.mds", std::make_unique<test::BytesInMemory>(shard), {.text = "text", .row_bytes = row_bytes});
  std::vector<std::string> texts;
  for (TableCell cell; reader->next(cell);)
    texts.push_back(cell.reason.empty() ? std::string(cell.text) : "[" + cell.reason + "]");
  return texts;
}

TEST(MdsReader, SkipsTooLongTexts) {
  EXPECT_THAT(
      made_texts(shard_of({text_sample(std::string(500, 'x')), text_sample("one"), text_sample(std::string(11, 'y')),
                           text_sample("two")}),
                 10),
      ::testing::ElementsAre("[the sample is longer than 160 bytes]", "one", "[it is longer than 10 bytes]", "two"));
}

TEST(MdsReader, AcceptsFixedSizes) {
  EXPECT_THAT(made_texts(shard_of({"abc", "def"}, "3")), ::testing::ElementsAre("abc", "def"));
  EXPECT_THAT(made_texts(shard_of({text_sample("abcd")}, "0")), ::testing::ElementsAre("abcd"));
}

TEST(MdsReader, SamplesFollowTheirOffsets) {
  EXPECT_THAT(message_of<CorruptionError>([] { made_texts(shard_of({text_sample("a") + "b"})); }),
              HasSubstr("it has 1 bytes after its last value"));
  std::string falling = shard_of({text_sample("a"), text_sample("b")});
  falling.replace(8, 4, u32(5));
  EXPECT_THAT(message_of<CorruptionError>([&] { made_texts(falling); }), HasSubstr("sample 0 ends before it begins"));
}

TEST(MdsReader, ErrorsNameThePlaceOfDamage) {
  const std::string whole = read_file(golden_table("text.mds"));
  EXPECT_THAT(message_of<CorruptionError>([&] { read_all_texts(whole.substr(0, whole.size() - 1)); }),
              AllOf(HasSubstr("a.mds: sample 3: the shard ends early"), HasSubstr("copy or download")));
  EXPECT_THAT(message_of<CorruptionError>([&] { read_all_texts("some text, no shard"); }), HasSubstr("a.mds: head: "));
}

TEST(MdsReader, SurvivesEveryTruncationAndFlippedBit) {
  for_damaged(read_file(golden_table("text.mds")), 1, [](const std::string& damaged) {
    try {
      read_all_texts(damaged);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.mds: "));
    }
  });
}

}  // namespace
}  // namespace witan
