#include "witan/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <tuple>

#include "support/message_of.h"
#include "support/rank.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(WITAN_SOURCE_DIR) / "tests/golden/checkpoint/tensors.safetensors";

std::string file_of(std::string header, std::string_view data, bool pad = true) {
  if (pad) header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data);
}

class Safetensors : public ::testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    fs::remove(path_);
    std::ofstream(path_, std::ios::binary) << bytes;
    std::string message = message_of<CheckpointError>([&] { SafetensorsFile file(path_); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "x.safetensors";
  testing::Rank rank_{1, 1 << 20};
};

TEST_F(Safetensors, MatchesTheReferenceImplementationByteForByte) {
  const std::vector<std::pair<std::string, Tensor>> tensors = {
      {"layers.0.weight", rank_.tensor<float>({2, 3}, {0, 1, 2, 3, 4, 5})},
      {"counts", rank_.tensor<int64_t>({2}, {-1, int64_t{1} << 40})},
      {"scalar", rank_.tensor<float>({}, {1.5F})},
      {"empty", rank_.tensor<bf16>({0, 4}, {})},
      {"exact", rank_.tensor<double>({1, 2}, {0.1, -2.5})},
      {"half", rank_.tensor<bf16>({3}, {bf16(1.0F), bf16(-2.0F), bf16(std::numeric_limits<float>::infinity())})},
      {"ids", rank_.tensor<int32_t>({3}, {7, -8, 9})}};
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(path_, infos);
  std::vector<std::string> order;
  for (const TensorInfo& info : writer.order()) {
    order.push_back(info.name);
    writer.write(std::ranges::find(tensors, info.name, &std::pair<std::string, Tensor>::first)->second);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"counts", "exact", "layers.0.weight", "scalar", "ids", "empty", "half"}));
  const FileDigest digest = writer.finish();
  const std::string bytes = read_file(path_);
  EXPECT_EQ(bytes, read_file(kGolden));
  EXPECT_EQ(digest, (FileDigest{bytes.size(), hash_hex(bytes.data(), bytes.size())}));
  EXPECT_EQ(writer.bytes(), bytes.size());
  EXPECT_EQ(safetensors_bytes(infos), bytes.size());
}

TEST_F(Safetensors, ReadsTheGoldenFile) {
  const SafetensorsFile file(kGolden);
  ASSERT_EQ(file.tensors().size(), 7U);
  EXPECT_EQ(file.metadata(), (SafetensorsWriter::Metadata{{"format", "pt"}}));
  EXPECT_EQ(file.find("absent"), nullptr);
  const auto* half = file.find("half");
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->info.dtype, DType::bf16);
  EXPECT_EQ(half->info.shape, Shape{3});
  uint16_t bits[3];
  ASSERT_EQ(half->bytes.size(), sizeof bits);
  std::memcpy(bits, half->bytes.data(), sizeof bits);
  EXPECT_EQ(bits[1], 0xC000);
  EXPECT_EQ(file.find("scalar")->info.shape, Shape{});
  EXPECT_EQ(file.find("empty")->info.shape, (Shape{0, 4}));
}

TEST_F(Safetensors, KeepsMetadataAndEscapesNames) {
  const std::string name = "a \"quoted\"\\ name\n";
  SafetensorsWriter writer(path_, {{name, DType::f32, {1}}}, {{"step", "3"}});
  writer.write(rank_.tensor<float>({1}, {4}));
  writer.finish();
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), (SafetensorsWriter::Metadata{{"format", "pt"}, {"step", "3"}}));
  ASSERT_NE(file.find(name), nullptr);
  EXPECT_EQ((file.bytes().size() - sizeof(float)) % 8, 0U);
}

TEST_F(Safetensors, WriterRefusesUndeclaredData) {
  EXPECT_THAT(message_of<CheckpointError>([&] {
                SafetensorsWriter(path_, {{"x", DType::f32, {1}}, {"x", DType::f64, {2}}});
              }),
              HasSubstr("two tensors are named \"x\""));
  {
    SafetensorsWriter writer(path_, {{"x", DType::f32, {2}}});
    EXPECT_THAT(message_of<ShapeError>([&] {
                  writer.write(rank_.tensor<float>({3}, {1, 2, 3}));
                }),
                HasSubstr("\"x\" must be contiguous float32 [2] with values, got float32 [3]"));
    EXPECT_THAT(message_of<ShapeError>([&] { writer.finish(); }), HasSubstr("got 0 of its 1 tensors"));
    writer.write(rank_.tensor<float>({2}, {1, 2}));
    EXPECT_THAT(message_of<ShapeError>([&] {
                  writer.write(rank_.tensor<float>({2}, {1, 2}));
                }),
                HasSubstr("has all of its 1 tensors already"));
  }
  EXPECT_TRUE(fs::is_empty(folder_.path())) << "an unfinished file stayed";
}

TEST_F(Safetensors, RefusesTruncationAtEveryByte) {
  const std::string golden = read_file(kGolden);
  for (size_t size = 0; size < golden.size(); ++size) error_of(golden.substr(0, size));
  EXPECT_THAT(error_of(golden.substr(0, golden.size() - 1)),
              HasSubstr("describes 78 bytes of data, the file holds 77: it is truncated"));
  EXPECT_THAT(error_of(golden + "x"), HasSubstr("bytes that belong to no tensor"));
}

TEST_F(Safetensors, RefusesHostileHeaders) {
  const auto entry = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return cat(R"({"x":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
  };
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"", "", "not valid JSON"},
      {"[]", "", "expected a JSON object, found array"},
      {R"({"x":1})", "", "tensor \"x\": expected an object, found number"},
      {entry("F8_E4M3", "[2]", "[0,2]"), "12", "tensor \"x\": dtype \"F8_E4M3\" is not supported"},
      {entry("F32", "[1]", "[0,8]"), "12345678", "float32 [1] has 4 bytes, its \"data_offsets\" are [0, 8]"},
      {entry("F32", "[1]", "[4,0]"), "1234", "its \"data_offsets\" are [4, 0]"},
      {entry("F32", "[1]", "[4,8]"), "12345678", "begins at byte 4 of the data, expected 0: there is a hole"},
      {entry("F32", "[1]", "[0]"), "1234", "must be [begin, end], found 1 values"},
      {entry("F32", "[1]", "[0,4.0]"), "1234", "end must be a whole number from 0"},
      {entry("F32", "[-1]", "[0,4]"), "1234", "a size must be a whole number from 0"},
      {entry("F32", "[1,1,1,1,1,1]", "[0,4]"), "1234", "at most 5 dims, found 6"},
      {entry("F32", "[4294967296,4294967296,4294967296]", "[0,0]"), "", "larger than any memory"},
      {entry("F32", "[0,4294967296,4294967296,4294967296]", "[0,0]"), "", "larger than any memory"},
      {entry("F32", "[4611686018427387905]", "[0,4]"), "1234", "larger than any memory"},
      {entry("F32", "[18446744073709551615]", "[0,4]"), "1234", "a size must be a whole number"},
      {entry("F32", "[99999999999999999999999]", "[0,4]"), "1234", "a size must be a whole number"},
      {entry("F32", "7", "[0,4]"), "1234", "\"shape\" must be a list, found 7"},
      {entry("F32", "[[[[1]]]]", "[0,4]"), "1234", "nested deeper than 4"},
      {R"({"x":{"shape":[1],"data_offsets":[0,4]}})", "1234", "\"dtype\" is missing"},
      {R"({"x":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", "1234", "\"dtype\" must be a string"},
      {R"({"__metadata__":3})", "", "\"__metadata__\" must be an object"},
      {R"({"__metadata__":{"a":3}})", "", "\"a\" must be a string"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       "123456", "tensor \"y\" begins at byte 2 of the data, expected 4: there is an overlap"},
      {R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
       "", "appears twice"},
  };
  for (const auto& [header, data, expected] : cases)
    EXPECT_THAT(error_of(file_of(header, data)), HasSubstr(expected)) << header;
}

TEST_F(Safetensors, RefusesHeaderLengthsBeforeUsingThem) {
  const std::string_view header = "{}      ";
  for (const uint64_t length : {uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string bytes = file_of(std::string(header), "");
    std::memcpy(bytes.data(), &length, sizeof length);
    EXPECT_THAT(error_of(bytes), HasSubstr(cat("a header of ", length, " bytes, at most 100000000")));
  }
  std::string bytes = file_of(std::string(header), "");
  bytes[0] = 9;
  EXPECT_THAT(error_of(bytes), HasSubstr("a header of 9 bytes, the file holds 8 after its length"));
  EXPECT_THROW(SafetensorsFile(folder_ / "absent"), IoError);
}

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i * 7));
  return bytes;
}

TEST(StoredWriter, RoundTripsDtypesThatNoTensorHas) {
  const TempFolder folder;
  const std::vector<StoredTensor> order = {{"a", "F16", {2, 3}, 12}, {"b", "F8_E4M3", {5}, 5}, {"c", "U8", {0}, 0}};
  const auto bytes = some_bytes(17);
  StoredWriter writer(folder / "x.safetensors", order, {{"made", "here"}});
  writer.write(bytes.data(), 7);  // chunks of any size
  writer.write(bytes.data() + 7, 10);
  const FileDigest digest = writer.finish();
  const MappedFile file(folder / "x.safetensors");
  EXPECT_EQ(digest.bytes, file.bytes().size());
  EXPECT_EQ(digest.hash, hash_hex(file.bytes().data(), file.bytes().size()));
  std::map<std::string, std::string> metadata;
  const auto tensors = parse_safetensors(file.bytes(), "x", stored_element_bytes, metadata);
  EXPECT_EQ(metadata.at("made"), "here");
  ASSERT_EQ(tensors.size(), 3U);
  std::vector<std::byte> read;
  for (const PlacedTensor& tensor : tensors) read.insert(read.end(), tensor.bytes.begin(), tensor.bytes.end());
  EXPECT_EQ(read, bytes);
}

TEST(StoredWriter, IncompleteFilesDoNotAppear) {
  const TempFolder folder;
  const auto bytes = some_bytes(17);
  {
    StoredWriter writer(folder / "x.safetensors", {{"a", "U8", {17}, 17}});
    writer.write(bytes.data(), 16);
    EXPECT_THAT(message_of<ShapeError>([&] { writer.finish(); }), HasSubstr("of its"));
  }
  EXPECT_FALSE(fs::exists(folder / "x.safetensors"));
}

TEST(StoredWriter, RefusesDtypesUnusedForWeights) {
  EXPECT_THAT(message_of<CheckpointError>([] { stored_element_bytes("C64", "file"); }),
              HasSubstr("file: unsupported dtype \"C64\""));
}

}  // namespace
}  // namespace witan
