// Split models, whose parts are made by tests/golden/gguf/make_split.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/gguf/gguf_support.h"
#include "support/message_of.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using testing::GgufFiles;
using testing::golden;
using testing::golden_gguf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::values_of;

const fs::path kSplit = fs::path(WITAN_SOURCE_DIR) / "tests/golden/gguf/split";
constexpr const char* kParts[] = {"mixtral-00001-of-00003.gguf", "mixtral-00002-of-00003.gguf",
                                  "mixtral-00003-of-00003.gguf"};

// A split model is opened by any of its parts or by its folder.
TEST_F(GgufFiles, PartsEqualTheWholeFile) {
  GgufWeights whole(golden_gguf("mixtral"));
  for (const fs::path& given : {kSplit, kSplit / kParts[0], kSplit / kParts[2]}) {
    EXPECT_TRUE(is_gguf_model(given)) << given;
    GgufWeights parts(given);
    EXPECT_EQ(parts.where(), (kSplit / kParts[0]).string());
    EXPECT_THAT(differences(parts.model(), whole.model()), IsEmpty());
    EXPECT_EQ(parts.sources().size(), whole.sources().size());
    ASSERT_EQ(parts.weights(), whole.weights());
    for (const auto& [name, shape] : whole.weights())
      EXPECT_EQ(values_of(parts, name, shape), values_of(whole, name, shape)) << name;
  }
  EXPECT_FALSE(is_gguf_model(golden("mixtral"))) << "a Hugging Face folder";
}

TEST_F(GgufFiles, ErrorsNameMissingAndForeignParts) {
  const auto fresh = [&](const std::string& name) {
    fs::copy(kSplit, folder_ / name);
    return folder_ / name;
  };
  const auto refusal = [](const fs::path& path) { return test::message_of<Error>([&] { GgufParts{path}; }); };
  const fs::path lacking = fresh("lacking");
  fs::remove(lacking / kParts[1]);
  for (const fs::path& given : {lacking, lacking / kParts[0], lacking / kParts[2]})
    EXPECT_THAT(refusal(given), HasSubstr((lacking / kParts[1]).string() + " is missing: the model is in 3 parts"));
  const fs::path twice = fresh("twice");
  fs::copy_file(kSplit / kParts[1], twice / kParts[2], fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(twice), HasSubstr(std::string(kParts[2]) + " is part 3 of 3 by its name, but says split.no = 1"));
  const fs::path renamed = fresh("renamed");
  fs::rename(renamed / kParts[0], renamed / "first.gguf");
  EXPECT_THAT(refusal(renamed / "first.gguf"),
              HasSubstr("first.gguf is part 1 of 3 of a model, and the others are found by its name: call it as it was "
                        "called, NAME-00001-of-00003.gguf"));
  EXPECT_THAT(refusal(renamed),
              HasSubstr("has several models: first, mixtral; give the file of one, or its first part"));
  // A part of another model with the same number and other tensors.
  const fs::path mixed = fresh("mixed");
  GgufMetadata keys("part");
  const auto put = [&](const char* key, GgufType type, int64_t value) {
    keys.put(key, {.type = type, .integers = {value}});
  };
  put("split.no", GgufType::u16, 2);
  put("split.count", GgufType::u16, 3);
  put("split.tensors.count", GgufType::i32, 23);
  write_file_atomically(mixed / kParts[2], gguf_header(keys, {}));
  EXPECT_THAT(refusal(mixed), HasSubstr("split.tensors.count = 23, but its parts have 16 tensors"));
}

}  // namespace
}  // namespace witan
