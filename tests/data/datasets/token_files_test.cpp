#include "witan/data/datasets/token_files.h"

#include <cstring>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Documents = std::vector<std::vector<int32_t>>;

TEST(NpyTokens, ReadsFilesOfOlmo) {
  EXPECT_EQ(read_all(NpyTokens(golden("olmo_u16.npy"), 0)), (Documents{{5, 65535, 7, 0}, {9, 0}, {0}, {11}}));
  EXPECT_EQ(read_all(NpyTokens(golden("olmo_u32.npy"), 0)),
            (Documents{{100'005, 165'535, 100'007, 0}, {100'009, 0}, {0}, {100'011}}));
  EXPECT_EQ(read_all(NpyTokens(golden("olmo_u16.npy"), std::nullopt)), (Documents{{5, 65535, 7, 0, 9, 0, 0, 11}}));
}

TEST(NpyTokens, ReadsFilesOfNumpy) {
  const Documents expected = {{5, 65535, 7, 0}, {9, 0}, {0}, {11}};
  EXPECT_EQ(read_all(NpyTokens(golden("saved_u16.npy"), 0)), expected);
  EXPECT_EQ(read_all(NpyTokens(golden("saved_u32.npy"), 0)), expected);
  EXPECT_EQ(read_all(*open_tokens(golden("saved_u16.npy"), 0)), expected) << "recognised by its name";
}

// Version 2 of the format, whose header may be longer than 64 KiB.
TEST(NpyTokens, ReadsLongHeaders) {
  const TempFolder folder;
  std::string saved = read_file(golden("saved_u16.npy"));
  saved[6] = 2;
  saved.insert(10, 2, '\0');
  put(folder / "a.npy", saved);
  EXPECT_EQ(read_all(NpyTokens(folder / "a.npy", 0)), (Documents{{5, 65535, 7, 0}, {9, 0}, {0}, {11}}));
}

TEST(NpyTokens, EndsWithItsLastDocument) {
  const TempFolder folder;
  put(folder / "a.npy", std::string("\5\1\0\0", 4));  // 261 and 0
  const NpyTokens tokens(folder / "a.npy", 0);
  EXPECT_EQ(tokens.documents(), 1);
  put(folder / "b.npy", "");
  EXPECT_EQ(NpyTokens(folder / "b.npy", 0).tokens(), 0);
  EXPECT_EQ(NpyTokens(folder / "b.npy", 0).documents(), 1);
}

TEST(NpyTokens, RefusesOtherArrays) {
  const TempFolder folder;
  EXPECT_THAT(
      message_of<DataError>([] { NpyTokens(golden("saved_f32.npy"), {}); }),
      AllOf(HasSubstr("saved_f32.npy: the array {'descr': '<f4'"), HasSubstr("wanted one dimension of <u2 or <u4")));
  const std::string saved = read_file(golden("saved_u16.npy"));
  const auto refusal = [&](const std::string& bytes) {
    put(folder / "a.npy", bytes);
    return message_of<Error>([&] { NpyTokens(folder / "a.npy", {}); });
  };
  EXPECT_THAT(refusal(saved.substr(0, saved.size() - 2)), HasSubstr("the header says 8 tokens of 2 bytes"));
  EXPECT_THAT(refusal(saved.substr(0, 50)), HasSubstr("a header of"));
  EXPECT_THAT(refusal(saved.substr(0, 9)), HasSubstr("ends inside NumPy's header"));
  EXPECT_THAT(refusal("odd"), HasSubstr("3 bytes are no whole number of 2-byte tokens"));
  std::string matrix = saved;
  matrix.replace(matrix.find("(8,), "), 6, "(4, 2)");
  EXPECT_THAT(refusal(matrix), HasSubstr("holds no tokens"));
}

TEST(NpyTokens, RefusesIdsThatDoNotFit) {
  const TempFolder folder;
  std::string saved = read_file(golden("saved_u32.npy"));
  saved.back() = '\xFF';
  put(folder / "a.npy", saved);
  EXPECT_THAT(message_of<CorruptionError>([&] { read_all(NpyTokens(folder / "a.npy", {})); }),
              HasSubstr("byte 156: token id 4278190091 is above 2^31 - 1"));
}

using ::testing::AllOf;
using ::testing::HasSubstr;
using Documents = std::vector<std::vector<int32_t>>;

TEST(TokenBin, ReadsGoldenFiles) {
  EXPECT_EQ(read_all(TokenBin(golden("gpt2_u16_llmc.bin"), {})), (Documents{{50256, 1, 2, 50256, 3, 50256}}));
  EXPECT_EQ(read_all(TokenBin(golden("gpt2_u16_llmc.bin"), 50256)), (Documents{{50256, 1, 2}, {50256, 3}, {50256}}));
  EXPECT_EQ(read_all(TokenBin(golden("llama3_u32_llmc.bin"), 128001)), (Documents{{128000}, {128001, 5}}));
}

TEST(TokenBin, ReportsTruncationAtEveryByteAndExcess) {
  const TempFolder folder;
  for (const char* name : {"gpt2_u16_llmc.bin", "llama3_u32_llmc.bin"}) {
    const std::string whole = read_file(golden(name));
    for (size_t n = 0; n < whole.size(); ++n)
      EXPECT_THAT(message_of<CorruptionError>([&] { TokenBin(put(folder / "t.bin", whole.substr(0, n)), {}); }),
                  HasSubstr("t.bin: byte "))
          << n;
    EXPECT_THROW(TokenBin(put(folder / "t.bin", whole + "x"), {}), CorruptionError);
  }
}

TEST(TokenBin, RefusesInvalidHeaders) {
  const TempFolder folder;
  const std::string whole = read_file(golden("gpt2_u16_llmc.bin"));
  const auto error_with = [&](size_t field, int32_t value) {
    std::string changed = whole;
    std::memcpy(changed.data() + field * 4, &value, 4);
    return message_of<CorruptionError>([&] { TokenBin(put(folder / "t.bin", changed), 50256); });
  };
  EXPECT_THAT(error_with(0, 1), AllOf(HasSubstr("magic 1"), HasSubstr("20240520")));
  EXPECT_THAT(error_with(0, 20240801), HasSubstr("with version 1"));
  EXPECT_THAT(error_with(1, 7), HasSubstr("version 7"));
  for (const int32_t count : {-1, INT32_MIN, INT32_MAX, 5, 7}) EXPECT_THAT(error_with(2, count), HasSubstr("byte 8"));
}

TEST(TokenBin, RefusesIdsAboveThirtyOneBits) {
  const TempFolder folder;
  std::string whole = read_file(golden("llama3_u32_llmc.bin"));
  whole[1024 + 4 + 3] = '\x80';
  const TokenBin dataset(put(folder / "t.bin", whole), {});
  EXPECT_THAT(message_of<CorruptionError>([&] { read_document(dataset, 0); }), HasSubstr("byte 1028"));
}

TEST(OpenTokens, RecognisesFormatsByTheirFiles) {
  for (const char* name : {"u16", "u16.bin", "u16.idx"}) EXPECT_EQ(open_tokens(golden(name))->documents(), 3) << name;
  EXPECT_EQ(open_tokens(golden("gpt2_u16_llmc.bin"), 50256)->documents(), 3);
  EXPECT_EQ(open_tokens(golden("gpt2_u16_llmc"))->documents(), 1);
  EXPECT_THAT(message_of<DataError>([] { open_tokens(golden("absent")); }), HasSubstr("absent.bin"));
}

TEST(OpenTokens, ErrorsNameAMissingMegatronIndex) {
  const TempFolder folder;
  const fs::path path = put(folder / "d.bin", std::string(4096, '\1'));
  EXPECT_THAT(message_of<CorruptionError>([&] { open_tokens(path); }), HasSubstr(".idx"));
}

}  // namespace
}  // namespace witan
