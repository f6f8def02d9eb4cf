#include "witan/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

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
  manifest.tensors["w"] = {DType::bf16, {7, 4}, {{0, {0, 16}}, {1, {16, 12}}}};
  manifest.tensors["s"] = {DType::f64, {}, {{1, {0, 1}}}};
  manifest.tensors["columns"] = {DType::f32, {3, 4}, {{0, {0, 1, 3, 4}}, {1, {1, 3, 3, 4}}}};
  manifest.tensors["none"] = {DType::i32, {0, 3}, {}};
  manifest.tensors["buffer"] = {DType::f64, {}, {{1, {0, 1}}}, StateTensor::Kind::buffer};
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

TEST(ManifestTest, RoundTrips) {
  const std::string text = manifest_text(small());
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(read), text);
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.shards[1].digest, (FileDigest{200, kHash}));
  EXPECT_EQ(read.tensors.at("w").shape, (Shape{7, 4}));
  EXPECT_EQ(read.tensors.at("w").parts[1].region, Region(16, 12));
  EXPECT_EQ(read.tensors.at("columns").parts[1].region, Region(1, 3, 3, 4));
  EXPECT_EQ(read.tensors.at("s").shape, Shape{});
  EXPECT_EQ(read.tensors.at("s").kind, StateTensor::Kind::value);
  EXPECT_EQ(read.tensors.at("buffer").kind, StateTensor::Kind::buffer);
  EXPECT_EQ(read.scalars, small().scalars);
}

// Files do not hold a tensor's kind: it follows from the name and from whether the tensor is a buffer.
TEST(ManifestTest, ReadsKindsFromNames) {
  using Kind = StateTensor::Kind;
  Manifest manifest;
  manifest.shards = {{"shard-00000.safetensors", {88, kHash}}};
  const std::map<std::string, Kind> kinds = {
      {"w", Kind::value}, {"count", Kind::buffer}, {"master/w", Kind::master}, {"adam.m/w", Kind::optimizer}};
  for (const auto& [name, kind] : kinds) manifest.tensors[name] = {DType::f32, {}, {{0, {0, 1}}}, kind};
  manifest.tensors["v"] = manifest.tensors["w"];
  const Manifest read = parse_manifest(manifest_text(manifest), "m");
  for (const auto& [name, kind] : kinds) EXPECT_EQ(read.tensors.at(name).kind, kind) << name;
  EXPECT_EQ(read.master_or_value("w")->first, "master/w");
  EXPECT_EQ(read.master_or_value("v")->first, "v");
  EXPECT_EQ(read.master_or_value("x"), read.tensors.end());
}

// The hash was computed by another program (Python's xxhash).
TEST(ManifestTest, TextIsFrozen) {
  Manifest manifest;
  manifest.step = 3;
  manifest.shards = {{"shard-00000.safetensors", {88, kHash}}};
  manifest.tensors["s"] = {DType::f32, {}, {{0, {0, 1}}}};
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
     "first": 0,
     "length": 1,
     "shard": 0
    }
   ],
   "shape": []
  }
 },
 "version": 2,
 "xxh3_128": "ac2b6493f105a5d5d1eedb9af2164ffe"
}
)");
}

// A manifest from before regions, whose parts are rows of dim 0. The hash is the old program's.
TEST(ManifestTest, ReadsVersionOne) {
  const Manifest read = parse_manifest(R"({
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
)",
                                       "m");
  EXPECT_EQ(read.tensors.at("s").parts[0].region, Region(0, 1));
  Json rows = content();
  rows["version"] = 1;
  rows["tensors"] = {
      {"w",
       {{"dtype", "BF16"},
        {"shape", {7, 4}},
        {"parts", {{{"shard", 0}, {"first_row", 0}, {"rows", 4}}, {{"shard", 1}, {"first_row", 4}, {"rows", 3}}}}}},
      {"empty", {{"dtype", "F32"}, {"shape", {2, 0}}, {"parts", {{{"shard", 0}, {"first_row", 0}, {"rows", 2}}}}}}};
  EXPECT_EQ(parse_manifest(seal(rows), "m").tensors.at("w").parts[1].region, Region(16, 12));
  EXPECT_TRUE(parse_manifest(seal(rows), "m").tensors.at("empty").parts.empty());
  rows["tensors"]["w"]["parts"][1]["rows"] = 4;
  EXPECT_THAT(error_of(seal(rows)), HasSubstr("\"rows\" must be a whole number from 1 to 3"));
  rows["tensors"]["w"]["parts"][1]["rows"] = 2;
  EXPECT_THAT(error_of(seal(rows)), HasSubstr("elements 24 to 28 are in no part"));
}

TEST(ManifestTest, DescribesParts) {
  const Shape global = {7, 4};
  EXPECT_EQ(part_name("w", global, {0, 28}), "w");
  EXPECT_EQ(part_name("s", {}, {0, 1}), "s");
  EXPECT_EQ(part_name("w", global, {16, 12}), "w[4:7]");
  EXPECT_EQ(part_name("w", global, {2, 9}), "w[2+9]");
  EXPECT_EQ(part_name("w", global, {2, 2, 7, 4}), "w[2+2x7/4]");
  EXPECT_EQ(part_shape(global, {0, 28}), global);
  EXPECT_EQ(part_shape(global, {16, 12}), Shape({3, 4}));
  EXPECT_EQ(part_shape(global, {2, 9}), Shape{9});
  EXPECT_EQ(part_shape(global, {2, 2, 7, 4}), Shape{14});
}

// Cuts a global tensor in every way that layouts do: experts, gate and up halves or columns, then flat slices.
std::vector<Region> random_cut(std::mt19937& random, int64_t& elements) {
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return *(from.begin() + std::uniform_int_distribution<size_t>(0, from.size() - 1)(random));
  };
  const int64_t experts = pick({1, 2, 4}), blocks = pick({1, 2, 3}), tensor = pick({1, 2, 4}),
                owners = pick({1, 2, 3, 5});
  const int64_t block = tensor * pick({1, 3, 6}), expert = blocks * block, held = pick({1, 2}) * expert;
  elements = experts * held;
  std::vector<Region> parts;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t t = 0; t < tensor; ++t) {
      const Region part = Region(e * held, held).divided(block, tensor, t);
      for (int64_t o = 0; o < owners; ++o)
        for (const Region& slice : part.slice(part.elements() * o / owners, part.elements() * (o + 1) / owners))
          parts.push_back(slice);
    }
  std::ranges::shuffle(parts, random);
  return parts;
}

TEST(ManifestTest, AcceptsOnlyPartsThatCoverATensor) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    int64_t elements = 0;
    const std::vector<Region> parts = random_cut(random, elements);
    ASSERT_EQ(gap_or_overlap(parts, elements), "") << trial;
    std::vector<Region> fewer = parts, doubled = parts, moved = parts;
    const size_t one = random() % parts.size();
    fewer.erase(fewer.begin() + static_cast<int64_t>(one));
    EXPECT_NE(gap_or_overlap(fewer, elements), "");
    doubled.push_back(parts[one]);
    EXPECT_NE(gap_or_overlap(doubled, elements), "");
    if (parts[one].end() >= elements) continue;
    moved[one] = {parts[one].first() + 1, parts[one].length(), parts[one].runs(), parts[one].distance()};
    EXPECT_NE(gap_or_overlap(moved, elements), "");
  }
}

TEST(ManifestTest, ChecksHugePartsWithoutCountingElements) {
  constexpr int64_t huge = int64_t{1} << 60;
  EXPECT_EQ(gap_or_overlap({{0, 1, huge, 4}, {1, 3, huge, 4}}, 4 * huge), "");
  EXPECT_EQ(gap_or_overlap({{0, 1, huge, 4}, {1, 2, huge, 4}}, 4 * huge),
            "the gaps between the runs of the part (0 + i * 4, 1) x 1152921504606846976 are not filled by parts of "
            "the same runs");
}

TEST(ManifestTest, DetectsEveryTruncationAndFlippedBit) {
  const std::string text = manifest_text(small());
  for (size_t size = 0; size < text.size(); ++size) error_of(text.substr(0, size));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    error_of(flipped);
  }
}

TEST(ManifestTest, RefusesInvalidContentWithAValidHash) {
  const auto error_with = [](std::string_view pointer, Json value) {
    Json json = content();
    json[Json::json_pointer(std::string(pointer))] = std::move(value);
    return error_of(seal(json));
  };
  const auto part = [](int64_t shard, int64_t first, int64_t length) {
    return Json{{"shard", shard}, {"first", first}, {"length", length}};
  };
  const auto runs = [](int64_t length, int64_t count, int64_t distance) {
    return Json{{"shard", 0}, {"first", 0}, {"length", length}, {"runs", count}, {"distance", distance}};
  };
  EXPECT_THAT(error_with("/format", "other"), HasSubstr("the format is \"other\", expected \"witan-checkpoint\""));
  EXPECT_THAT(error_with("/version", 3), HasSubstr("version 3 of the format, this program reads 1 and 2"));
  EXPECT_THAT(error_with("/step", -1), HasSubstr("\"step\" must be a whole number from 0"));
  EXPECT_THAT(error_with("/step", 1.5), HasSubstr("\"step\" must be a whole number"));
  EXPECT_THAT(error_with("/scalars", Json::array()), HasSubstr("\"scalars\" must be an object"));
  EXPECT_THAT(error_with("/tensors", 3), HasSubstr("\"tensors\" must be an object, found 3"));
  for (const char* name : {"../config.toml", "/etc/passwd", "a/b", "..", ".hidden", "", "a b", "a\\b"})
    EXPECT_THAT(error_with("/files/0/file", name), HasSubstr("is not a valid name of a checkpoint file")) << name;
  EXPECT_THAT(error_with("/shards/0/file", std::string("a\0b", 3)), HasSubstr("is not a valid name"));
  EXPECT_THAT(error_with("/shards/0/file", std::string(256, 'a')), HasSubstr("is not a valid name"));
  EXPECT_THAT(error_with("/shards/0/file", "config.toml"), HasSubstr("two files are named \"config.toml\""));
  EXPECT_THAT(error_with("/files/0/file", "manifest.json"), HasSubstr("two files are named \"manifest.json\""));
  EXPECT_THAT(error_with("/shards/0/bytes", -1), HasSubstr("\"bytes\" must be a whole number"));
  EXPECT_THAT(error_with("/shards/0/bytes", ~uint64_t{0}), HasSubstr("\"bytes\" must be a whole number"));
  EXPECT_THAT(error_with("/shards/0/xxh3_128", "beef"), HasSubstr("\"beef\" is not an XXH3-128"));
  EXPECT_THAT(error_with("/tensors/w/dtype", "F8"), HasSubstr("tensor \"w\": dtype \"F8\" is not supported"));
  EXPECT_THAT(error_with("/tensors/w/shape", {7, int64_t{1} << 62}), HasSubstr("larger than any memory"));
  EXPECT_THAT(error_with("/tensors/w/shape", {8, 4}), HasSubstr("tensor \"w\": elements 28 to 32 are in no part"));
  EXPECT_THAT(error_with("/tensors/w/shape", {6, 4}),
              HasSubstr("a part of 1 x 12 elements from 16 on exceeds the tensor's end, 24"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 20, 8)), HasSubstr("elements 16 to 20 (of 28) are in no part"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 12, 16)), HasSubstr("the element 12 is in two parts"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(2, 16, 12)), HasSubstr("shard 2 is not one of the 2"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 16, 0)),
              HasSubstr("\"length\" must be a whole number from 1 to 28"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, 16, std::numeric_limits<int64_t>::max())),
              HasSubstr("\"length\" must be a whole number from 1 to 28"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", part(1, -1, 12)), HasSubstr("\"first\" must be a whole number from 0"));
  EXPECT_THAT(error_with("/tensors/w/parts/1", 5), HasSubstr("a part must be an object"));
  EXPECT_THAT(error_with("/tensors/w/parts", Json::array()), HasSubstr("elements 0 to 28 are in no part"));
  EXPECT_THAT(error_with("/tensors/none/parts/0", part(0, 0, 1)),
              HasSubstr("a tensor without elements cannot list parts"));
  EXPECT_THAT(error_with("/tensors/columns/parts/0", runs(1, 2, 4)), HasSubstr("are not filled by parts"));
  EXPECT_THAT(error_with("/tensors/columns/parts/0", runs(1, 5, 3)), HasSubstr("a part of 5 x 1 elements from 0 on"));
  EXPECT_THAT(error_with("/tensors/columns/parts/0", runs(2, 3, 1)), HasSubstr("\"distance\" must be a whole number"));
  EXPECT_THAT(error_with("/tensors/columns/parts/0", runs(2, 3, 4)), HasSubstr("are not filled by parts"));
  EXPECT_THAT(error_with("/tensors/buffer/buffer", 1), HasSubstr("buffer must be true or false, found number"));
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
  EXPECT_THAT(error_of(text), HasSubstr("the key \"step\" appears twice"));
}

}  // namespace
}  // namespace witan
