#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "convert/convert_support.h"
#include "witan/convert/models/architecture.h"

namespace witan {
namespace {

// An export takes the first that can be the model, so that the order decides what a plain model becomes.
TEST(Registry, ExportsTryThePlainArchitecturesFirst) {
  std::vector<std::string> names = testing::architecture_names();
  ASSERT_GE(names.size(), 14U);
  names.resize(14);
  EXPECT_THAT(names, ::testing::ElementsAre("llama", "qwen3", "mistral", "qwen2", "mixtral", "qwen3_moe", "olmoe",
                                            "olmo2", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "phi3", "gpt2"));
}

TEST(Registry, ArchitecturesAreFoundByTheirModelType) {
  std::set<std::string_view> types;
  for (const Architecture& one : architectures()) {
    EXPECT_EQ(find_architecture(one.model_type), &one);
    EXPECT_TRUE(types.insert(one.model_type).second) << one.model_type;
  }
  EXPECT_EQ(find_architecture("kimi_k2"), find_architecture("deepseek_v3"));
  EXPECT_EQ(find_architecture("llama2"), nullptr);
  EXPECT_EQ(find_architecture(""), nullptr);
}

TEST(Registry, ArchitecturesAreWhole) {
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

TEST(Registry, NoTypeIsBothKnownAndRefused) {
  for (const Architecture& one : architectures()) EXPECT_EQ(lacking_part(one.model_type), "") << one.model_type;
  EXPECT_NE(lacking_part("apertus"), "");
}

// A name of llama.cpp's stands for several architectures only if the file's keys tell them apart.
TEST(Registry, SharedGgufNamesAreToldApart) {
  for (const Architecture& one : architectures())
    for (const Architecture& other : architectures())
      if (&one != &other && !one.gguf.name.empty() && one.gguf.name == other.gguf.name) {
        EXPECT_NE(one.gguf.matches, nullptr) << one.model_type << " and " << other.model_type;
      }
}

}  // namespace
}  // namespace witan
