#include "witan/data/datasets/indexed_dataset.h"

#include <cstring>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Documents = std::vector<std::vector<int32_t>>;

class Indexed : public ::testing::Test {
 protected:
  // Opens and reads everything.
  static Documents read(const fs::path& prefix) { return read_all(IndexedDataset(prefix)); }

  // The golden pair of files, for damaging.
  void load(const std::string& name) {
    idx_ = read_file(golden(name + ".idx"));
    bin_ = read_file(golden(name + ".bin"));
  }
  fs::path store(const std::string& idx, const std::string& bin) {
    put(folder_ / "d.idx", idx);
    put(folder_ / "d.bin", bin);
    return folder_ / "d";
  }
  template <class T>
  std::string with(size_t offset, T value) const {
    std::string changed = idx_;
    std::memcpy(changed.data() + offset, &value, sizeof value);
    return changed;
  }
  std::string error_of(const std::string& idx, const std::string& bin) {
    return message_of<CorruptionError>([&] { read(store(idx, bin)); });
  }

  TempFolder folder_;
  std::string idx_, bin_;
};

TEST_F(Indexed, ReadsGoldenFiles) {
  const IndexedDataset u16(golden("u16"));
  EXPECT_EQ(u16.type(), TokenType::u16);
  EXPECT_EQ(u16.tokens(), 5);
  EXPECT_EQ(read_all(u16), (Documents{{1, 2, 65499}, {}, {7, 8}}));
  EXPECT_EQ(read(golden("i32")), (Documents{{100000, 1}, {2, 3, 4}}));
}

TEST_F(Indexed, JoinsSequencesOfADocument) {
  const IndexedDataset sentences(golden("i64_sentences"));
  EXPECT_EQ(sentences.sequences(), 4);
  EXPECT_EQ(read_all(sentences), (Documents{{1, 2, 3}, {4, 5, 6, 7}}));
  std::vector<int32_t> middle(2);
  sentences.read(1, 1, middle);
  EXPECT_EQ(middle, (std::vector<int32_t>{5, 6}));
}

TEST_F(Indexed, ReadsColumnsBesideTokens) {
  load("u16");
  const fs::path prefix = store(idx_, bin_), folder = folder_ / "d.columns";
  EXPECT_TRUE(IndexedDataset(prefix).columns().empty());
  const std::vector<float> values = {0.5f, -1, 2, 3, 4.25f};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  put(folder / "rewards.f32", bytes);
  put(folder / "advantages.f32", bytes);
  put(folder / "README", "what these are");
  const IndexedDataset dataset(prefix);
  EXPECT_EQ(dataset.columns(), (std::vector<ColumnSpec>{{"advantages"}, {"rewards"}}));
  std::vector<float> read(2);
  dataset.read_column({"rewards"}, 0, 1, read);
  EXPECT_EQ(read, (std::vector<float>{-1, 2}));
  dataset.read_column({"rewards"}, 2, 0, read);
  EXPECT_EQ(read, (std::vector<float>{3, 4.25f}));
  for (const size_t size : {size_t{0}, bytes.size() - 1, bytes.size() - 4, bytes.size() + 4}) {
    std::string wrong = bytes;
    wrong.resize(size);
    put(folder / "rewards.f32", wrong);
    EXPECT_THAT(
        message_of<CorruptionError>([&] { IndexedDataset{prefix}; }),
        AllOf(HasSubstr("rewards.f32: byte "), HasSubstr("the file must have 20 bytes, a float32 for each token of")));
  }
}

TEST_F(Indexed, WritesTheGoldenBytes) {
  for (const auto& [name, vocab_size] : {std::pair{"u16", int64_t{65499}}, std::pair{"i32", int64_t{100001}}}) {
    const IndexedDataset from(golden(name));
    IndexedWriter writer(folder_ / name, vocab_size);
    for (int64_t d = 0; d < from.documents(); ++d) {
      auto document = read_document(from, d);
      for (auto& token : document) token = std::min(token, static_cast<int32_t>(vocab_size) - 1);
      writer.add(document);
    }
    EXPECT_EQ(writer.documents(), from.documents());
    EXPECT_EQ(writer.tokens(), from.tokens());
    writer.finish();
    EXPECT_EQ(read_file(folder_ / (std::string(name) + ".idx")), read_file(golden(std::string(name) + ".idx")));
  }
  EXPECT_EQ(read_file(folder_ / "i32.bin"), read_file(golden("i32.bin")));
  EXPECT_EQ(read(folder_ / "u16"), (Documents{{1, 2, 65498}, {}, {7, 8}}));
}

TEST_F(Indexed, ChoosesTheWidthLikeMegatron) {
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST_F(Indexed, WriterLeavesNothingWithoutFinish) {
  {
    IndexedWriter writer(folder_ / "d", 10);
    writer.add(std::vector<int32_t>{1, 2});
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Indexed, WriterReplacesAnOlderPair) {
  for (const int32_t token : {1, 2}) {
    IndexedWriter writer(folder_ / "d", 10);
    writer.add(std::vector<int32_t>(static_cast<size_t>(token), token));
    writer.finish();
    EXPECT_EQ(read(folder_ / "d"), (Documents{std::vector<int32_t>(static_cast<size_t>(token), token)}));
  }
}

TEST_F(Indexed, WriterRefusesIdsOutsideTheVocabulary) {
  IndexedWriter writer(folder_ / "d", 10);
  EXPECT_THAT(message_of<DataError>([&] {
                writer.add(std::vector<int32_t>{1, 10});
              }),
              AllOf(HasSubstr("10"), HasSubstr("document 0")));
  EXPECT_THROW(writer.add(std::vector<int32_t>{-1}), DataError);
}

TEST_F(Indexed, AcceptsEmptyPairs) {
  IndexedWriter(folder_ / "d", 10).finish();
  EXPECT_EQ(IndexedDataset(folder_ / "d").documents(), 0);
}

TEST_F(Indexed, ReportsTruncationAtEveryByte) {
  for (const char* name : {"u16", "i32", "i64_sentences"}) {
    load(name);
    for (size_t n = 0; n < idx_.size(); ++n) {
      const bool modes_cut_off = std::string(name) == "i64_sentences" && n == idx_.size() - 4;  // modes are optional
      if (modes_cut_off) continue;
      EXPECT_THAT(error_of(idx_.substr(0, n), bin_), HasSubstr("d.idx: byte ")) << n;
    }
    for (size_t n = 0; n < bin_.size(); ++n)
      EXPECT_THAT(error_of(idx_, bin_.substr(0, n)), HasSubstr("truncated")) << n;
    EXPECT_THAT(error_of(idx_, bin_ + "x"), HasSubstr("the same pair"));
    EXPECT_THAT(error_of(idx_ + "x", bin_), HasSubstr("must have"));
  }
}

TEST_F(Indexed, DetectsEveryHarmfulFlippedBit) {
  for (const char* name : {"u16", "i32", "i64_sentences"}) {
    load(name);
    int found = 0;
    for (size_t bit = 0; bit < idx_.size() * 8; ++bit) {
      std::string flipped = idx_;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      try {
        int64_t tokens = 0;
        const IndexedDataset dataset(store(flipped, bin_));
        for (int64_t d = 0; d < dataset.documents(); ++d)
          tokens += static_cast<int64_t>(read_document(dataset, d).size());
        EXPECT_EQ(tokens, dataset.tokens());
      } catch (const CorruptionError&) {
        ++found;
      }
    }
    EXPECT_GT(found, static_cast<int>(idx_.size()) * 8 * 3 / 4);
  }
}

TEST_F(Indexed, ErrorsNameTheInvalidField) {
  load("u16");
  EXPECT_THAT(error_of(with<char>(0, 'X'), bin_), HasSubstr("byte 0: not a Megatron index"));
  EXPECT_THAT(error_of(with<uint64_t>(9, 2), bin_), HasSubstr("byte 9: version 2"));
  EXPECT_THAT(error_of(with<uint8_t>(17, 7), bin_), HasSubstr("byte 17: type code 7"));
  EXPECT_THAT(error_of(with<int32_t>(34, -1), bin_), HasSubstr("byte 34: sequence 0 has the length -1"));
  EXPECT_THAT(error_of(with<int64_t>(46 + 8, 5), bin_), HasSubstr("byte 54: sequence 1 starts at byte 5"));
  EXPECT_THAT(error_of(with<int64_t>(70, 1), bin_), HasSubstr("byte 70: document boundary 0"));
  EXPECT_THAT(error_of(with<int64_t>(70 + 16, 0), bin_), HasSubstr("document boundary 2"));
  EXPECT_THAT(error_of(with<int64_t>(70 + 24, 2), bin_), HasSubstr("document boundary 3"));
}

TEST_F(Indexed, HugeCountsDoNotOverflow) {
  load("u16");
  for (const uint64_t huge :
       {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 62, ~uint64_t{0} / 12, ~uint64_t{0} / 12 + 1, uint64_t{9}}) {
    EXPECT_THAT(error_of(with<uint64_t>(18, huge), bin_), HasSubstr("d.idx: byte"));
    EXPECT_THAT(error_of(with<uint64_t>(26, huge), bin_), HasSubstr("d.idx: byte"));
  }
  EXPECT_THAT(error_of(with<uint64_t>(26, 0), bin_), HasSubstr("0 document ends"));
  for (const int64_t huge : {INT64_MAX, INT64_MIN, int64_t{-1}}) {
    EXPECT_THROW(read(store(with<int64_t>(46 + 16, huge), bin_)), CorruptionError);
    EXPECT_THROW(read(store(with<int64_t>(70 + 8, huge), bin_)), CorruptionError);
  }
  EXPECT_THROW(read(store(with<int32_t>(34, INT32_MAX), bin_)), CorruptionError);
}

TEST_F(Indexed, RefusesInvalidTokenIds) {
  load("i32");
  bin_.replace(4, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(error_of(idx_, bin_), AllOf(HasSubstr("d.bin: byte 4"), HasSubstr("negative")));
}

TEST_F(Indexed, NamesAMissingFile) {
  EXPECT_THAT(message_of<IoError>([&] { IndexedDataset(folder_ / "absent"); }), HasSubstr("absent.idx"));
}

}  // namespace
}  // namespace witan
