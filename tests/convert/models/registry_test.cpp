#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "convert/convert_support.h"
#include "witan/base/text.h"
#include "witan/convert/models/architecture.h"

namespace witan {
namespace {

// An export uses the first architecture that can represent the model, so the order decides for plain models.
TEST(Registry, ExportsTryPlainArchitecturesFirst) {
  std::vector<std::string> names = testing::architecture_names();
  ASSERT_GE(names.size(), 14U);
  names.resize(14);
  EXPECT_THAT(names, ::testing::ElementsAre("llama", "qwen3", "mistral", "qwen2", "mixtral", "qwen3_moe", "olmoe",
                                            "olmo2", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "phi3", "gpt2"));
}

TEST(Registry, FindsArchitecturesByModelType) {
  std::set<std::string_view> types;
  for (const Architecture& one : architectures()) {
    EXPECT_EQ(find_architecture(one.model_type), &one);
    EXPECT_TRUE(types.insert(one.model_type).second) << one.model_type;
  }
  EXPECT_EQ(find_architecture("kimi_k2"), find_architecture("deepseek_v3"));
  EXPECT_EQ(find_architecture("llama2"), nullptr);
  EXPECT_EQ(find_architecture(""), nullptr);
}

TEST(Registry, ArchitecturesAreComplete) {
  for (const Architecture& one : architectures()) {
    EXPECT_FALSE(one.name.empty() || one.prefix.empty() || one.rules.empty() || one.defaults.empty()) << one.model_type;
    EXPECT_TRUE(one.read != nullptr && one.write != nullptr) << one.model_type;
    EXPECT_EQ(one.gguf.name.empty(), one.gguf.rules.empty()) << one.model_type;
    EXPECT_EQ(one.gguf.name.empty(), one.gguf.write == nullptr) << one.model_type;
    for (const auto& table : one.rules)
      for (const TensorRule& rule : table)
        EXPECT_TRUE(rule.joined.empty() || std::ranges::find(rule.joined, rule.witan) != rule.joined.end())
            << one.model_type << ": " << rule.witan << " is not among the tensors that it is joined with";
  }
}

TEST(Registry, NoTypeIsBothSupportedAndRefused) {
  for (const Architecture& one : architectures()) EXPECT_EQ(lacking_part(one.model_type), "") << one.model_type;
  EXPECT_NE(lacking_part("apertus"), "");
}

// The rows of the table of text decoders in docs/convert.md: the first column, and the types in the second.
std::vector<std::pair<std::string, std::vector<std::string>>> documented_decoders() {
  const std::string page = read_file(fs::path(WITAN_SOURCE_DIR) / "docs/convert.md");
  std::istringstream lines(page.substr(page.find("## Text decoders of transformers\n") + 3));
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
  for (std::string line; std::getline(lines, line) && !line.starts_with("## ");) {
    const size_t second = line.find(" | `");
    if (!line.starts_with("| ") || second == std::string::npos || second < 2) continue;
    std::vector<std::string> types;
    for (size_t at = line.find('`', second); at != std::string::npos;) {
      const size_t end = line.find('`', at + 1);
      types.push_back(line.substr(at + 1, end - at - 1));
      at = line.find('`', end + 1);
    }
    rows.emplace_back(line.substr(2, second - 2), types);
  }
  return rows;
}

// For each text decoder of transformers (tests/golden/convert/make_decoders.py) the page says whether it is supported,
// refused with a reason, or not yet examined.
TEST(Registry, EveryTextDecoderOfTransformersIsDocumented) {
  std::map<std::string, std::string> documented;
  for (const auto& [word, types] : documented_decoders())
    for (const std::string& type : types)
      EXPECT_TRUE(documented.emplace(type, word).second) << type << " is listed twice";
  std::map<std::string, std::string> expected;
  std::istringstream decoders(read_file(testing::golden("decoders.txt")));
  for (std::string type; std::getline(decoders, type);) {
    const std::string_view lacking = lacking_part(type);
    if (find_architecture(type) != nullptr)
      expected[type] = "supported";
    else
      expected[type] = lacking.empty() ? "not looked at" : cat("refused: ", lacking);
  }
  EXPECT_GT(expected.size(), 190U);
  EXPECT_EQ(documented, expected);
}

// A llama.cpp name can stand for several architectures only if the file's keys distinguish them.
TEST(Registry, SharedGgufNamesAreDistinguished) {
  for (const Architecture& one : architectures())
    for (const Architecture& other : architectures())
      if (&one != &other && !one.gguf.name.empty() && one.gguf.name == other.gguf.name) {
        EXPECT_NE(one.gguf.matches, nullptr) << one.model_type << " and " << other.model_type;
      }
}

}  // namespace
}  // namespace witan
