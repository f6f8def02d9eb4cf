#include "witan/data/parquet/packed_integers.h"

#include <limits>
#include <random>

#include "data/data_support.h"
#include "data/parquet/encoders.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {
namespace {

using tables::Damaged;

std::vector<uint32_t> decoded_hybrid(const std::string& bytes, int width, size_t count, size_t step) {
  HybridReader reader(bytes, width);
  std::vector<uint32_t> values(count);
  for (size_t at = 0; at < count; at += step) reader.read(std::span(values).subspan(at, std::min(step, count - at)));
  return values;
}

TEST(Levels, AcceptsLongRuns) {
  const std::string bytes = "\xC0\x9A\x0C\x01";  // 100,000 times 1: the doubled count in three bytes of seven bits
  EXPECT_EQ(decoded_hybrid(bytes, 1, 100'000, 777), std::vector<uint32_t>(100'000, 1));
}

// Encodings.md: 0 to 7 with three bits each.
TEST(Levels, ReadsTheFormatsExample) {
  const std::string bytes = "\x03\x88\xC6\xFA";
  EXPECT_EQ(decoded_hybrid(bytes, 3, 8, 8), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Levels, ReadsRunsAndGroupsOfEveryWidth) {
  std::mt19937_64 random(1);
  for (int width = 0; width <= 32; ++width) {
    const uint64_t most = width == 0 ? 0 : (uint64_t{1} << width) - 1;
    std::vector<uint32_t> values;
    std::string bytes;
    for (int run = 0; run < 20; ++run) {
      if (random() % 2) {
        const uint32_t value = static_cast<uint32_t>(random() & most);
        const size_t count = 1 + random() % 200;
        append_run(bytes, value, count, width);
        values.insert(values.end(), count, value);
      } else {
        std::vector<uint64_t> group(8 * (1 + random() % 20));
        for (uint64_t& value : group) value = random() & most;
        append_varint(bytes, group.size() / 8 << 1 | 1);
        append_packed(bytes, group, width);
        for (const uint64_t value : group) values.push_back(static_cast<uint32_t>(value));
      }
    }
    for (const size_t step : {1u, 7u, 4096u})
      EXPECT_EQ(decoded_hybrid(bytes, width, values.size(), step), values) << width;
    EXPECT_THROW(decoded_hybrid(bytes, width, values.size() + 1, 64), Damaged);
  }
}

TEST(Levels, TheLastGroupMayOmitUnusedBytes) {
  const std::string bytes = "\x03\x88";  // two complete values of three bits
  EXPECT_EQ(decoded_hybrid(bytes, 3, 2, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_THROW(decoded_hybrid(bytes, 3, 3, 3), Damaged);
}

TEST(Levels, RefusesEmptyRunsAndWideValues) {
  EXPECT_THROW(decoded_hybrid(std::string(1, '\0'), 1, 1, 1), Damaged);
  EXPECT_THROW(decoded_hybrid(std::string("\x01"), 1, 1, 1), Damaged);
  EXPECT_THROW(decoded_hybrid(std::string("\xff\xff\xff\xff\xff\xff\xff"), 1, 1, 1), Damaged);
  EXPECT_THROW(HybridReader({}, 33), Damaged);
  EXPECT_THROW(decoded_hybrid({}, 0, 1, 1), Damaged);
}

using tables::Damaged;

std::vector<int64_t> decoded_delta(const std::string& bytes) {
  DeltaReader reader(bytes);
  std::vector<int64_t> values;
  for (uint64_t i = 0; i < reader.count(); ++i) values.push_back(reader.next());
  EXPECT_THROW(reader.next(), Damaged);
  return values;
}

// Encodings.md: 1 to 5, with differences of 1; and 7 5 3 1 2 3 4 5, with minimum -2 and the others in 2 bits.
TEST(Delta, ReadsTheFormatsExamples) {
  EXPECT_EQ(decoded_delta(std::string("\x08\x01\x05\x02\x02\x00", 6)), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(decoded_delta("\x08\x01\x08\x0E\x03\x02\xC0\x3F"), (std::vector<int64_t>{7, 5, 3, 1, 2, 3, 4, 5}));
}

TEST(Delta, ReadsWrittenBlocksAndFindsTheirEnd) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const size_t miniblocks = 1 + random() % 4, block = miniblocks * 8 * (1 + random() % 8);
    std::vector<int64_t> values(random() % 400);
    const int shift = static_cast<int>(random() % 64);
    for (int64_t& value : values) value = static_cast<int64_t>(random()) >> shift;
    const std::string bytes = delta_packed(values, block, miniblocks);
    EXPECT_EQ(DeltaReader(bytes + "more").length(), bytes.size());
    EXPECT_EQ(decoded_delta(bytes + "more"), values);
    if (values.size() > 1) {
      EXPECT_THROW(decoded_delta(bytes.substr(0, bytes.size() - 1)), Damaged);
    }
  }
}

TEST(Delta, WrapsAroundAt64Bits) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> values = {kLeast, kMost, -1, kLeast, 0, kMost};
  EXPECT_EQ(decoded_delta(delta_packed(values, 8, 1)), values);
}

TEST(Delta, RefusesImpossibleBlocks) {
  EXPECT_THROW(DeltaReader(std::string("\x00\x01\x01\x00", 4)), Damaged);
  EXPECT_THROW(DeltaReader(std::string("\x08\x00\x01\x00", 4)), Damaged);
  EXPECT_THROW(DeltaReader(std::string("\x08\x03\x01\x00", 4)), Damaged);
  EXPECT_THROW(DeltaReader(std::string("\x04\x01\x01\x00", 4)), Damaged);
  EXPECT_THROW(decoded_delta(std::string("\x08\x01\x05\x02\x02\x41", 6)), Damaged) << "65 bits";
}

}  // namespace
}  // namespace witan::parquet
