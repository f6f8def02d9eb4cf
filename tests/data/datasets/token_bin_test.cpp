#include "witan/data/datasets/token_bin.h"

#include <cstring>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

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

TEST(TokenBin, RefusesAHeaderThatIsNotOne) {
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

TEST(OpenTokens, GoesByTheFilesThatAreThere) {
  for (const char* name : {"u16", "u16.bin", "u16.idx"}) EXPECT_EQ(open_tokens(golden(name))->documents(), 3) << name;
  EXPECT_EQ(open_tokens(golden("gpt2_u16_llmc.bin"), 50256)->documents(), 3);
  EXPECT_EQ(open_tokens(golden("gpt2_u16_llmc"))->documents(), 1);
  EXPECT_THAT(message_of<DataError>([] { open_tokens(golden("absent")); }), HasSubstr("absent.bin"));
}

TEST(OpenTokens, AMegatronBinWithoutItsIndexSaysSo) {
  const TempFolder folder;
  const fs::path path = put(folder / "d.bin", std::string(4096, '\1'));
  EXPECT_THAT(message_of<CorruptionError>([&] { open_tokens(path); }), HasSubstr(".idx"));
}

}  // namespace
}  // namespace witan
