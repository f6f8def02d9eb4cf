// Recorded routes in bytes: files written directly from the format's page, and malicious ones.
#include "witan/data/routes/route_file.h"

#include <gmock/gmock.h>

#include <cstring>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden_routes(const char* name) {
  return read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/routes" / name);
}

TEST(RouteFile, ReadsGoldenFiles) {
  const RouteFile small = parse_routes(golden_routes("small.routes"), "small");
  EXPECT_EQ(small.kind, RouteFile::Kind::training);
  EXPECT_EQ(small.step, 7);
  EXPECT_EQ(small.experts, 5);
  EXPECT_EQ(small.topk, 2);
  EXPECT_EQ(small.all_sequences, 4);
  EXPECT_EQ(small.sequence_length, 4);
  EXPECT_EQ(small.first_sequence, 2);
  EXPECT_EQ(small.sequences, 2);
  EXPECT_THAT(small.positions, ElementsAre(PositionRange{0, 1}, PositionRange{3, 1}));
  EXPECT_THAT(small.tokens, ElementsAre(10, 13, 20, 23));
  ASSERT_EQ(small.layers.size(), 2U);
  EXPECT_EQ(small.layers[0].layer, 1);
  EXPECT_EQ(small.layers[1].layer, 3);
  EXPECT_THAT(small.layers[1].ids, ElementsAre(4, 3, 2, 1, 1, 0, 0, 4));
  EXPECT_THAT(small.layers[0].weights, ElementsAre(0.75F, 0.25F, 0.5F, 0.5F, 1.0F, 0.0F, 0.625F, 0.375F));

  const RouteFile wide = parse_routes(golden_routes("wide.routes"), "wide");
  EXPECT_EQ(wide.kind, RouteFile::Kind::generation);
  EXPECT_THAT(wide.layers.at(0).ids, ElementsAre(299, 0, 256));
  EXPECT_THAT(wide.layers.at(0).weights, ElementsAre(1.0F, 0.5F, 0.25F));
}

TEST(RouteFile, WritesTheSameBytes) {
  for (const char* name : {"small.routes", "wide.routes"})
    EXPECT_EQ(encode_routes(parse_routes(golden_routes(name), name)), golden_routes(name)) << name;
}

TEST(RouteFile, ReportsTruncationAtEveryByteAndExcess) {
  const std::string whole = golden_routes("small.routes");
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_THAT(message_of<CorruptionError>([&] { parse_routes(whole.substr(0, n), "cut"); }), HasSubstr("cut: byte "))
        << n;
  EXPECT_THROW(parse_routes(whole + "x", "long"), CorruptionError);
}

TEST(RouteFile, DetectsEveryFlippedBit) {
  const std::string whole = golden_routes("small.routes");
  for (size_t i = 0; i < whole.size() * 8; ++i) {
    std::string flipped = whole;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << i % 8));
    EXPECT_THROW(parse_routes(flipped, "flipped"), CorruptionError) << "bit " << i;
  }
}

// Here the checksum is correct, but the numbers must not be trusted either.
TEST(RouteFile, RefusesInconsistentNumbers) {
  const auto refusal = [](size_t offset, auto value) {
    std::string bytes = golden_routes("small.routes");
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    bytes.resize(bytes.size() - 8);
    Hasher hasher;
    hasher.update(bytes.data(), bytes.size());
    const uint64_t hash = hasher.low64();
    bytes.append(reinterpret_cast<const char*>(&hash), 8);
    return message_of<CorruptionError>([&] { parse_routes(bytes, "bad"); });
  };
  constexpr size_t kVersion = 8, kIdBytes = 13, kExperts = 24, kTopk = 28, kAll = 32, kLength = 40, kSequences = 56,
                   kRanges = 64, kLayers = 68, kSecondRange = 88, kSecondLayer = 108, kIds = 128;
  EXPECT_THAT(refusal(0, 'X'), HasSubstr("it does not begin with WITANRTE"));
  EXPECT_THAT(refusal(kVersion, uint32_t{2}), HasSubstr("the version is 2"));
  EXPECT_THAT(refusal(kIdBytes, uint8_t{2}), HasSubstr("ids of 5 experts have no 2 bytes"));
  EXPECT_THAT(refusal(kExperts, uint32_t{0}), HasSubstr("the number of experts is 0"));
  EXPECT_THAT(refusal(kExperts, uint32_t{4}), HasSubstr("expert 4 of 4"));
  EXPECT_THAT(refusal(kTopk, uint32_t{6}), HasSubstr("top-k is 6"));
  EXPECT_THAT(refusal(kTopk, uint32_t{3}), HasSubstr("the header asks for"));
  EXPECT_THAT(refusal(kAll, uint64_t{3}), HasSubstr("the number of sequences is 2"));
  EXPECT_THAT(refusal(kAll, ~uint64_t{0}), HasSubstr("the step's number of sequences is"));
  EXPECT_THAT(refusal(kLength, uint64_t{3}), HasSubstr("the positions of a range"));
  EXPECT_THAT(refusal(kSequences, uint64_t{1}), HasSubstr("the header asks for"));
  EXPECT_THAT(refusal(kRanges, uint32_t{5}), HasSubstr("the number of ranges is 5"));
  EXPECT_THAT(refusal(kLayers, uint32_t{1} << 31), HasSubstr("the file ends within its"));
  EXPECT_THAT(refusal(kSecondRange, uint64_t{0}), HasSubstr("the first position of a range is 0"));
  EXPECT_THAT(refusal(kSecondLayer, uint32_t{1}), HasSubstr("the number of a layer is 1"));
  EXPECT_THAT(refusal(kIds, uint8_t{5}), HasSubstr("layer 1 has a token with expert 5 of 5"));
  EXPECT_THAT(refusal(kIds, uint8_t{1}), HasSubstr("layer 1 has a token with expert 1 twice"));
}

}  // namespace
}  // namespace witan
