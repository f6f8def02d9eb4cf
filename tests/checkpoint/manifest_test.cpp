#include "witan/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::HasSubstr;

const std::string kHash(32, 'a');

Manifest small() {
  Manifest manifest;
  manifest.step = 12;
  manifest.shards = {{"shard-00000.safetensors", {100, kHash}}, {"shard-00001.safetensors", {200, kHash}}};
  manifest.files = {{"config.toml", {5, kHash}}};
  manifest.tensors["w"] = {DType::bf16, {7, 4}, {{0, 0, 4}, {1, 4, 3}}};
  manifest.tensors["s"] = {DType::f64, {}, {{1, 0, 1}}};
  manifest.tensors["none"] = {DType::i32, {0, 3}, {}};
  manifest.scalars = {{"loss", 0.1}, {"name", "é"}};
  return manifest;
}

Json content() {
  Json json = Json::parse(manifest_text(small()));
  json.erase("xxh3_128");
  return json;
}

std::string error_of(const std::string& text) {
  return message_of<CheckpointError>([&] { parse_manifest(text, "manifest.json"); });
}

TEST(ManifestTest, SurvivesItsText) {
  const std::string text = manifest_text(small());
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(read), text);
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.shards[1].digest, (FileDigest{200, kHash}));
  EXPECT_EQ(read.tensors.at("w").shape, (Shape{7, 4}));
  EXPECT_EQ(read.tensors.at("w").parts[1].first_row, 4);
  EXPECT_EQ(read.tensors.at("s").shape, Shape{});
  EXPECT_EQ(read.scalars, small().scalars);
}

// The hash was computed by another program (Python's xxhash).
TEST(ManifestTest, TextIsFrozen) {
  Manifest manifest;
  manifest.step = 3;
  manifest.shards = {{"shard-00000.safetensors", {88, kHash}}};
  manifest.tensors["s"] = {DType::f32, {}, {{0, 0, 1}}};
  EXPECT_EQ(manifest_text(manifest), R"({
 "files": [],
 "format": "witan-checkpoint",
 "scalars": {},
 "shards": [
  {
   "bytes": 88,
   "file": "shard-00000.safetensors",
   "xxh3_128": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
  }
 ],
 "step": 3,
 "tensors": {
  "s": {
   "dtype": "F32",
   "parts": [
    {
     "first_row": 0,
     "rows": 1,
     "shard": 0
    }
   ],
   "shape": []
  }
 },
 "version": 1,
 "xxh3_128": "3041c6fe1a96d6a85dbaa09fc515261c"
}
)");
}

TEST(ManifestTest, NamesPartsByTheirRows) {
  const Manifest manifest = small();
  const auto& w = manifest.tensors.at("w");
  EXPECT_EQ(part_name("w", w, w.parts[1]), "w[4:7]");
  EXPECT_EQ(part_name("s", manifest.tensors.at("s"), {1, 0, 1}), "s");
}

TEST(ManifestTest, EveryTruncationAndEveryFlippedBitShows) {
  const std::string text = manifest_text(small());
  for (size_t size = 0; size < text.size(); ++size) error_of(text.substr(0, size));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    error_of(flipped);
  }
}

TEST(ManifestTest, RefusesHostileContentUnderAGoodHash) {
  const auto error_with = [](std::string_view pointer, Json value) {
    Json json = content();
    json[Json::json_pointer(std::string(pointer))] = std::move(value);
    return error_of(seal(json));
  };
  const auto part = [](int64_t shard, int64_t first_row, int64_t rows) {
    return Json{{"shard", shard}, {"first_row", first_row}, {"rows", rows}};
  };
  EXPECT_THAT(error_with("/format", "other"), HasSubstr("the format is \"other\", expected \"witan-checkpoint\""));
  EXPECT_THAT(error_with("/version", 2), HasSubstr("version 2 of the format, this program reads 1"));
  EXPECT_THAT(error_with("/step", -1), HasSubstr("\"step\" must be a whole number from 0"));
  EXPECT_THAT(error_with("/step", 1.5), HasSubstr("\"step\" must be a whole number"));
  EXPECT_THAT(error_with("/scalars", Json::array()), HasSubstr("\"scalars\" must be an object"));
  EXPECT_THAT(error_with("/tensors", 3), HasSubstr("\"tensors\" must be an object, found 3"));
  for (const char* name : {"../config.toml", "/etc/passwd", "a/b", "..", ".hidden", "", "a b", "a\\b"})
    EXPECT_THAT(error_with("/files/0/file", name), HasSubstr("cannot be a file of a checkpoint")) << name;
  EXPECT_THAT(error_with("/shards/0/file", std::string("a\0b", 3)), HasSubstr("cannot be a file"));
  EXPECT_THAT(error_with("/shards/0/file", std::string(256, 'a')), HasSubstr("cannot be a file"));
  EXPECT_THAT(error_with("/shards/0/file", "config.toml"), HasSubstr("two files are named \"config.toml\""));
  EXPECT_THAT(error_with("/files/0/file", "manifest.json"), HasSubstr("two files are named \"manifest.json\""));
  EXPECT_THAT(error_with("/shards/0/bytes", -1), HasSubstr("\"bytes\" must be a whole number"));
  EXPECT_THAT(error_with("/shards/0/bytes", ~uint64_t{0}), HasSubstr("\"bytes\" must be a whole number"));
  EXPECT_THAT(error_with("/shards/0/xxh3_128", "beef"), HasSubstr("\"beef\" is not an XXH3-128"));
  EXPECT_THAT(error_with("/tensors/w/dtype", "F8"), HasSubstr("tensor \"w\": dtype \"F8\" is not supported"));
  EXPECT_THAT(error_with("/tensors/w/shape", {7, int64_t{1} << 62}), HasSubstr("larger than any memory"));
  EXPECT_THAT(error_with("/tensors/w/shape", {8, 4}), HasSubstr("tensor \"w\": rows 7 to 8 are in no part"));
  EXPECT_THAT(error_with("/tensors/w/shape", {6, 4}), HasSubstr("a part of 3 rows at row 4 passes the end, 6"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 5, 2)), HasSubstr("rows 4 to 5 (of 7) are in no part"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 3, 4)), HasSubstr("row 3 is in two parts"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(2, 4, 3)), HasSubstr("shard 2 is not one of the 2"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 4, 0)), HasSubstr("\"rows\" must be a whole number from 1"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 4, std::numeric_limits<int64_t>::max())),
              HasSubstr("passes the end"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", 5), HasSubstr("a part must be an object"));
  EXPECT_THAT(error_with("/tensors/w/parts", Json::array()), HasSubstr("rows 0 to 7 are in no part"));
  EXPECT_THAT(error_with("/tensors/none/parts/0", part(0, 0, 1)), HasSubstr("passes the end, 0"));
  EXPECT_THAT(error_with("/tensors", {{std::string(1025, 'x'), content()["tensors"]["s"]}}),
              HasSubstr("a tensor's name has 1 to 1024 bytes"));
}

TEST(ManifestTest, RefusesMissingKeysAndDuplicates) {
  for (const char* key : {"format", "version", "step", "shards", "files", "tensors", "scalars"}) {
    Json json = content();
    json.erase(key);
    EXPECT_THAT(error_of(seal(json)), HasSubstr(cat('"', key, "\" is missing")));
  }
  std::string body = content().dump(1);
  body.replace(body.find("\"step\""), 6, "\"step\": 1, \"step\"");
  body.resize(body.size() - 2);
  const std::string text = cat(body, ",\n \"xxh3_128\": \"", hash_hex(body.data(), body.size()), "\"\n}\n");
  EXPECT_THAT(error_of(text), HasSubstr("the key \"step\" stands twice"));
}

}  // namespace
}  // namespace witan
