#include "witan/data/parquet/delta.h"

#include <limits>
#include <random>

#include "data/data_support.h"
#include "data/parquet/encoders.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {
namespace {

using tables::Damaged;

std::vector<int64_t> decoded_delta(const std::string& bytes) {
  DeltaReader reader(bytes);
  std::vector<int64_t> values;
  for (uint64_t i = 0; i < reader.count(); ++i) values.push_back(reader.next());
  EXPECT_THROW(reader.next(), Damaged);
  return values;
}

// Encodings.md: 1 to 5, whose differences are all 1; and 7 5 3 1 2 3 4 5, least -2, the others in 2 bits.
TEST(Delta, ReadsTheExamplesOfTheFormat) {
  EXPECT_EQ(decoded_delta(std::string("\x08\x01\x05\x02\x02\x00", 6)), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(decoded_delta("\x08\x01\x08\x0E\x03\x02\xC0\x3F"), (std::vector<int64_t>{7, 5, 3, 1, 2, 3, 4, 5}));
}

TEST(Delta, ReadsWhatIsWrittenAndKnowsWhereItEnds) {
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
