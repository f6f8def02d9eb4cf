// Small files that declare or nest more than memory can hold are refused before memory is allocated for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/data/arrow/arrow_reader.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/datasets/token_files.h"
#include "witan/data/mds/mds_reader.h"
#include "witan/data/parquet/parquet_file.h"
#include "witan/data/text/decompress.h"
#include "witan/data/text/jsonl.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

using test::TempFolder;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMostSeconds = 5;  // with sanitizers
#else
constexpr double kMostSeconds = 0.05;
#endif

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// `parse` throws one of our errors within this CPU time of the thread, so other processes do not count. A virtual
// machine's host can slow down a core, so the minimum of a few attempts is taken.
template <class Parse>
void expect_refused(const std::string& what, const Parse& parse) {
  constexpr int kTries = 3;
  double least = 2 * kMostSeconds;
  for (int i = 0; i < kTries && least >= kMostSeconds; ++i) {
    const double begin = thread_seconds();
    EXPECT_THROW(parse(), Error) << what;
    least = std::min(least, thread_seconds() - begin);
  }
  EXPECT_LT(least, kMostSeconds) << what;
}

fs::path write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(HeaderBombs, Safetensors) {
  const TempFolder folder;
  const auto refuse = [&](const std::string& what, uint64_t header_bytes, const std::string& rest) {
    const fs::path path = write(folder / "a.safetensors", bytes_of(header_bytes) + rest);
    expect_refused(what, [&] { SafetensorsFile{path}; });
  };
  const auto refuse_header = [&](const std::string& what, const std::string& header) {
    refuse(what, header.size(), header);
  };
  refuse("a header of 2^64 - 1 bytes", ~uint64_t{0}, "{}");
  refuse("a header of 2^63 bytes", uint64_t{1} << 63, "{}");
  refuse("a header of 100 MB that is not there", 100'000'000, "{}");
  refuse("a header of more than 100 MB", 100'000'001, "{}");
  refuse_header("lists in lists", repeated("[", 1 << 20));
  refuse_header("objects in objects", repeated("{\"a\":", 1 << 18));
  refuse_header("a shape of 2^62 x 2^62",
                R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})");
  refuse_header("a shape that wraps to nothing",
                R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})");
  refuse_header("a hundred thousand dims",
                R"({"a":{"dtype":"F32","shape":[)" + repeated("1,", 100'000) + R"(1],"data_offsets":[0,4]}})");
  refuse_header("an end of 2^64", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}})");
  refuse_header("a number of a million digits",
                R"({"a":{"dtype":"F32","shape":[)" + repeated("9", 1 << 20) + R"(],"data_offsets":[0,4]}})");
}

TEST(HeaderBombs, IndexedDatasets) {
  const TempFolder folder;
  write(folder / "a.bin", "tokens");
  for (const uint64_t sequences : {uint64_t{1} << 32, uint64_t{1} << 61, ~uint64_t{0}})
    for (const uint64_t documents : {uint64_t{1}, uint64_t{1} << 61, ~uint64_t{0}}) {
      write(folder / "a.idx", std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + '\x08' + bytes_of(sequences) +
                                  bytes_of(documents) + std::string(64, '\0'));
      expect_refused("sequences and documents that are not there", [&] { IndexedDataset{folder / "a"}; });
    }
  std::string header(1024, '\0');
  const int32_t words[3] = {20240520, 1, 0x7FFFFFFF};
  std::memcpy(header.data(), words, sizeof words);
  const fs::path path = write(folder / "llmc.bin", header + "tokens");
  expect_refused("2^31 tokens that are not there", [&] { TokenBin(path, {}); });
}

TEST(HeaderBombs, Tables) {
  const auto refuse_parquet = [](const std::string& what, const std::string& metadata, uint32_t length) {
    const std::string bytes = "PAR1" + metadata + bytes_of(length) + "PAR1";
    expect_refused(what, [&] { read_parquet("a.parquet", tables::open_memory(bytes), {}); });
  };
  const auto refuse_thrift = [&](const std::string& what, const std::string& metadata) {
    refuse_parquet(what, metadata, static_cast<uint32_t>(metadata.size()));
  };
  refuse_parquet("metadata of 2^32 - 1 bytes", "", ~uint32_t{0});
  refuse_thrift("structs in structs", repeated("\x1C", 1 << 20));
  refuse_thrift("lists in lists", repeated("\x19", 1 << 20));
  refuse_thrift("a schema of 2^31 elements", "\x29\xFC\xFF\xFF\xFF\xFF\x07");
  refuse_thrift("a name of 2^31 bytes", "\x29\x1C\x48\xFF\xFF\xFF\xFF\x07");
  refuse_thrift("a hundred thousand groups in one another",
                "\x29\xFC\xA0\x8D\x06" + repeated(std::string("\x48\x01g\x15\x02\0", 6), 100'000) + '\0');

  const auto refuse_arrow = [](const std::string& what, const std::string& bytes) {
    expect_refused(what, [&] { read_arrow("a.arrow", tables::open_memory(bytes), {}); });
  };
  refuse_arrow("metadata of 2^31 bytes", bytes_of(~uint32_t{0}) + bytes_of(uint32_t{0x7FFFFFFF}) + "bytes");
  refuse_arrow("a footer of 2^32 - 1 bytes", std::string("ARROW1\0\0", 8) + bytes_of(~uint32_t{0}) + "ARROW1");

  const TempFolder folder;
  const fs::path shard = write(folder / "a.mds", bytes_of(uint32_t{0x3FFFFFFD}) + bytes_of(~uint32_t{0}) + "samples");
  expect_refused("2^30 samples that are not there", [&] { open_mds(shard, {}); });
  const fs::path saved = write(folder / "a.npy", std::string("\x93NUMPY\2\0\xFF\xFF\xFF\xFF", 12) + "{'descr'");
  expect_refused("a header of 2^32 - 1 bytes", [&] { NpyTokens(saved, {}); });
}

TEST(HeaderBombs, TokenizerJson) {
  const auto refuse = [](const std::string& what, const std::string& json) {
    expect_refused(what, [&] { Tokenizer(parse_tokenizer_json(json, "tokenizer.json")); });
  };
  const auto with_vocab = [](const std::string& vocab, const std::string& added) {
    return R"({"added_tokens":[)" + added +
           R"(],"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},)"
           R"("model":{"type":"BPE","vocab":{)" +
           vocab + R"(},"merges":[]}})";
  };
  refuse("lists in lists", repeated("[", 1 << 20));
  refuse("a vocabulary of 2^31 - 1 entries", with_vocab(R"("a":2147483646)", ""));
  refuse("an id of 2^63", with_vocab(R"("a":9223372036854775808)", ""));
  refuse("an added token of 2^31 - 2", with_vocab(R"("a":0)", R"({"id":2147483646,"content":"<s>","special":true})"));
  refuse("a pattern that nests a million groups",
         R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":")" + repeated("(", 1 << 20) +
             R"("},"behavior":"Isolated"},"model":{"type":"BPE","vocab":{},"merges":[]}})");
}

TEST(HeaderBombs, RankFiles) {
  expect_refused("an id of 2^24 - 1", [&] { parse_tiktoken("YQ== 16777215\n", "r.tiktoken", "gpt2"); });
}

TEST(HeaderBombs, Manifests) {
  const auto refuse = [](const std::string& what, const std::string& content) {
    expect_refused(what, [&] { parse_manifest(content, "manifest.json"); });
    try {
      const std::string sealed = seal(parse_json(content, "manifest.json"));
      expect_refused(what + ", sealed", [&] { parse_manifest(sealed, "manifest.json"); });
    } catch (const Error&) {  // not JSON that could be sealed
    }
  };
  refuse("lists in lists", repeated("[", 1 << 20));
  refuse("a shape that wraps",
         R"({"format":"witan-checkpoint","version":1,"step":1,"shards":[],"files":[],"scalars":{},)"
         R"("tensors":{"w":{"dtype":"F32","shape":[4294967296,4294967296],"parts":[]}}})");
  refuse("rows that are nowhere", R"({"format":"witan-checkpoint","version":1,"step":1,"shards":[],"files":[],)"
                                  R"("scalars":{},"tensors":{"w":{"dtype":"F32","shape":[9223372036854775807],)"
                                  R"("parts":[{"shard":0,"first_row":0,"rows":9223372036854775807}]}}})");
  refuse("runs that are nowhere", R"({"format":"witan-checkpoint","version":2,"step":1,"shards":[],"files":[],)"
                                  R"("scalars":{},"tensors":{"w":{"dtype":"F32","shape":[1152921504606846976],)"
                                  R"("parts":[{"shard":0,"first":0,"length":1,"runs":1152921504606846976,)"
                                  R"("distance":1152921504606846976}]}}})");
}

TEST(HeaderBombs, RowsAndConfigurations) {
  JsonlParser parser("text");
  for (const std::string& row : {repeated("[", 1 << 20), R"({"text":)" + repeated("{\"a\":", 1 << 18)}) {
    const double begin = thread_seconds();
    EXPECT_FALSE(parser.parse(row).good());
    EXPECT_LT(thread_seconds() - begin, kMostSeconds);
  }
  RunConfig config;
  expect_refused("lists in lists",
                 [&] { parse_toml(config.fields(), "a = " + repeated("[", 1 << 16), "config.toml"); });
  expect_refused("tables in tables",
                 [&] { parse_toml(config.fields(), "[" + repeated("a.", 1 << 14) + "a]\nb = 1", "config.toml"); });
}

TEST(HeaderBombs, CompressedStreams) {
  const TempFolder folder;
  // A frame whose header requests a window of 2^41 bytes.
  const fs::path path = write(folder / "a.zst", std::string("\x28\xb5\x2f\xfd\x00\xf8", 6) + std::string(64, '\0'));
  expect_refused("a window of two terabytes", [&] {
    const auto reader = open_bytes(path);
    char out[64];
    reader->read(out, sizeof out);
  });
}

}  // namespace
}  // namespace witan
