#include "witan/tokenizer/files/serde_number.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "witan/base/files/file.h"
#include "witan/base/json.h"

namespace witan {
namespace {

// tests/golden/tokenizer/make_scores.py made the file with Hugging Face tokenizers.
TEST(SerdeNumber, ReadsLikeTheReference) {
  const Json golden =
      parse_json(read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/scores.json"), "golden");
  ASSERT_GT(golden["numbers"].size(), 100u);
  int rounded_twice = 0;
  for (const Json& number : golden["numbers"]) {
    const auto text = number[0].get<std::string>();
    const double expected = std::strtod(number[1].get_ref<const std::string&>().c_str(), nullptr);
    EXPECT_EQ(read_serde_number(text), expected) << text;
    rounded_twice += expected != std::strtod(text.c_str(), nullptr);
  }
  EXPECT_GT(rounded_twice, 10);
}

TEST(SerdeNumber, RoundTrips) {
  EXPECT_EQ(write_serde_number(0), "0");
  EXPECT_EQ(write_serde_number(-5.25), "-5.25");
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> score(-20, 0);
  int longer = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string given = fmt::format("{:.{}f}", score(random), 12 + i % 9);
    const double value = read_serde_number(given).value();
    const std::string text = write_serde_number(value);
    EXPECT_EQ(read_serde_number(text), value) << given << " written as " << text;
    longer += text.find('e') != std::string::npos;
  }
  EXPECT_GT(longer, 100);
}

TEST(SerdeNumber, RefusesOtherText) {
  for (const char* text :
       {"", "-", ".5", "5.", "1e", "1e+", "x", "1x", "1.5e3 ", "--1", "1e309", "1e999999999999999999"})
    EXPECT_EQ(read_serde_number(text), std::nullopt) << text;
  EXPECT_EQ(read_serde_number("1e-999999999999999999"), 0.0);
  EXPECT_EQ(read_serde_number("0e999999999999999999"), 0.0);
}

}  // namespace
}  // namespace witan
