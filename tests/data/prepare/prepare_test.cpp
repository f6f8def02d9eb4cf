#include "witan/data/prepare/prepare.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/datasets/indexed_dataset.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Documents = std::vector<std::vector<int32_t>>;

// One token per byte, and 256 for the end of text.
TextEncoder byte_encoder(std::string hash = "bytes") {
  return {[](std::string_view text, std::vector<int32_t>& out) {
            for (const char c : text) out.push_back(static_cast<unsigned char>(c));
          },
          [](int32_t token) { return token == 256 ? 0 : 1; }, 257, 256, std::move(hash)};
}

class Prepare : public ::testing::Test {
 protected:
  PreparedDataset prepare(const TextEncoder& encoder = byte_encoder()) {
    return prepare_dataset(find_sources({folder_ / "text"}).files, encoder, folder_ / "out/shards", options_);
  }

  TempFolder folder_;
  PrepareOptions options_;
};

TEST_F(Prepare, WritesShardsWithStatistics) {
  options_.split.held_out_fraction = 0.25;
  options_.corpus.bad_row_share = 0.5;
  options_.corpus.replace_invalid_utf8 = true;
  put(folder_ / "text/a.txt", "hi");
  put(folder_ / "text/b.jsonl", "{\"text\": \"caf\xC3\xA9\"}\nbroken\n{\"text\": \"x\"}\n");
  put(folder_ / "text/c.txt", "\xff");
  const PreparedDataset prepared = prepare();
  EXPECT_FALSE(prepared.reused);
  EXPECT_EQ(prepared.corpus.documents, 4);
  EXPECT_EQ(prepared.corpus.bad_rows, 1);
  EXPECT_EQ(prepared.corpus.replaced, 1);
  EXPECT_EQ(prepared.tokens, 2 + 5 + 1 + 3 + 4);
  EXPECT_EQ(prepared.train.tokens + prepared.held_out.tokens, prepared.tokens);
  EXPECT_EQ(prepared.train.bytes + prepared.held_out.bytes, static_cast<int64_t>(prepared.corpus.text_bytes));
  EXPECT_GT(prepared.held_out.bytes, 0);
  const IndexedDataset shards(prepared.prefix);
  EXPECT_EQ(shards.type(), TokenType::u16);
  EXPECT_EQ(read_all(shards),
            (Documents{{'h', 'i', 256}, {'c', 'a', 'f', 0xC3, 0xA9, 256}, {'x', 256}, {0xEF, 0xBF, 0xBD, 256}}));
  EXPECT_THAT(read_file(folder_ / "out/shards.quarantine.jsonl"), HasSubstr("broken"));
}

TEST_F(Prepare, ReusesFinishedShards) {
  put(folder_ / "text/a.txt", "some text");
  const PreparedDataset first = prepare(), again = prepare();
  EXPECT_TRUE(again.reused);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.corpus.text_bytes, first.corpus.text_bytes);
  EXPECT_EQ(again.held_out.bytes, first.held_out.bytes);
  EXPECT_EQ(again.train.tokens, first.train.tokens);
}

TEST_F(Prepare, RepeatsAfterAnyChange) {
  const fs::path file = put(folder_ / "text/a.txt", "some text");
  prepare();
  EXPECT_FALSE(prepare(byte_encoder("another")).reused);
  prepare();
  options_.corpus.document_bytes = 1000;
  EXPECT_FALSE(prepare().reused);
  options_.corpus.replace_invalid_utf8 = true;
  EXPECT_FALSE(prepare().reused);
  put(folder_ / "text/a.txt", "some other text");
  EXPECT_FALSE(prepare().reused);
  fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(prepare().reused);
  put(folder_ / "text/b.txt", "more");
  EXPECT_EQ(prepare().corpus.documents, 2);
  EXPECT_TRUE(prepare().reused);
  for (std::vector<std::string>* patterns : {&options_.selection.include, &options_.selection.exclude}) {
    patterns->emplace_back("*.txt");
    EXPECT_FALSE(prepare().reused);
    EXPECT_TRUE(prepare().reused);
  }
}

// Another program has written values for the tokens, at a higher cost than the tokens.
TEST_F(Prepare, KeepsColumnsAndNeverMixesThemWithOtherTokens) {
  put(folder_ / "text/a.txt", "some text");
  prepare();
  const fs::path column = column_file(folder_ / "out/shards", "advantages");
  put(column, std::string(sizeof(float) * std::string("some text.").size(), '\1'));
  const std::string tokens = read_file(folder_ / "out/shards.bin");
  EXPECT_TRUE(prepare().reused);
  put(folder_ / "text/a.txt", "same size");
  EXPECT_THAT(message_of<ConfigError>([&] { prepare(); }),
              AllOf(HasSubstr("out/shards.columns has values for the tokens of "),
                    HasSubstr("out/shards.bin, which are to be made anew: remove this folder, or give the shards")));
  EXPECT_EQ(read_file(folder_ / "out/shards.bin"), tokens);
  EXPECT_TRUE(fs::exists(column));
  fs::remove_all(column.parent_path());
  EXPECT_FALSE(prepare().reused);
  EXPECT_NE(read_file(folder_ / "out/shards.bin"), tokens);
}

TEST_F(Prepare, RepeatsIfShardsAreDamaged) {
  put(folder_ / "text/a.txt", "some text");
  prepare();
  for (const char* name : {"out/shards.bin", "out/shards.idx", "out/shards.json"}) {
    const std::string good = read_file(folder_ / name);
    for (const size_t at : {size_t{0}, good.size() / 2}) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      put(folder_ / name, flipped);
      EXPECT_FALSE(prepare().reused) << name << " " << at;
    }
    put(folder_ / name, good.substr(0, good.size() - 1));
    prepare();
    fs::remove(folder_ / name);
    EXPECT_FALSE(prepare().reused) << name;
    EXPECT_TRUE(prepare().reused) << name;
  }
}

TEST_F(Prepare, ReusesShardsForAnotherSplit) {
  put(folder_ / "text/a.txt", std::string(1000, 'x'));
  prepare();
  options_.split.held_out_fraction = 0.5;
  const PreparedDataset halves = prepare();
  EXPECT_TRUE(halves.reused);
  EXPECT_EQ(halves.held_out.tokens, 500);
  EXPECT_EQ(prepare().held_out.tokens, 500);
}

TEST_F(Prepare, IsIndependentOfThreads) {
  std::string rows;
  for (int i = 0; i < 3000; ++i)
    rows +=
        "{\"text\": \"" + std::string(static_cast<size_t>(i * 31 % 5000), static_cast<char>('a' + i % 26)) + "\"}\n";
  put(folder_ / "text/a.jsonl", rows);
  prepare();
  const std::string bin = read_file(folder_ / "out/shards.bin"), idx = read_file(folder_ / "out/shards.idx");
  fs::remove(folder_ / "out/shards.json");
  options_.threads = 3;
  EXPECT_FALSE(prepare().reused);
  EXPECT_TRUE(read_file(folder_ / "out/shards.bin") == bin);
  EXPECT_TRUE(read_file(folder_ / "out/shards.idx") == idx);
}

TEST_F(Prepare, ReportsProgressAndCanBeStopped) {
  put(folder_ / "text/a.txt", std::string(20 << 20, 'x') + "\n\n" + std::string(9 << 20, 'y'));
  const auto sources = find_sources({folder_ / "text"}).files;
  uint64_t last = 0;
  prepare_dataset(sources, byte_encoder(), folder_ / "one", {}, [&](const PrepareProgress& p) {
    EXPECT_GE(p.source_bytes, last);
    EXPECT_EQ(p.total_source_bytes, sources[0].bytes);
    last = p.source_bytes;
  });
  EXPECT_EQ(last, sources[0].bytes);
  const auto stop = [](const PrepareProgress&) { throw std::runtime_error("stop"); };
  EXPECT_THROW(prepare_dataset(sources, byte_encoder(), folder_ / "two/d", {}, stop), std::runtime_error);
  EXPECT_TRUE(fs::is_empty(folder_ / "two"));
}

// Only the run knows whether the text suffices for its sample length.
TEST_F(Prepare, AcceptsShortTexts) {
  options_.split.least_tokens = 65;
  put(folder_ / "text/a.txt", "some text");
  const PreparedDataset prepared = prepare();
  EXPECT_EQ(prepared.train.tokens, 5);
  EXPECT_EQ(prepared.held_out.tokens, 5);
  EXPECT_TRUE(prepare().reused);
  EXPECT_THAT(message_of<DataError>([&] { split_documents(open_tokens(prepared.prefix), options_.split); }),
              HasSubstr("has 10 tokens in 1 document; "));
}

}  // namespace
}  // namespace witan
