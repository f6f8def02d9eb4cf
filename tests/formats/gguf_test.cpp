#include "witan/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Gguf : public ::testing::Test {
 protected:
  Gguf() {
    metadata_.put_text("general.architecture", "llama");
    metadata_.put_u32("llama.block_count", 3);
    metadata_.put_f32("llama.rope.freq_base", 0.1);
    metadata_.put_flag("tokenizer.ggml.add_bos_token", true);
    metadata_.put("tokens", {.type = GgufType::text, .array = true, .texts = {"a", "", "\xE2\x96\x81"}});
    metadata_.put("types", {.type = GgufType::i32, .array = true, .integers = {-1, 3}});
    metadata_.put("scores", {.type = GgufType::f32, .array = true, .numbers = {0.5, -2}});
    metadata_.put("heads", {.type = GgufType::u32, .array = true, .integers = {4, 4, 4}});
    tensors_ = {
        {"first", {2, 3}, ggml_type("F32")}, {"blocks", {2, 32}, ggml_type("Q8_0")}, {"last", {5}, ggml_type("BF16")}};
    bytes_ = gguf_header(metadata_, tensors_);
    for (const GgufTensor& tensor : tensors_) {
      for (uint64_t i = 0; i < tensor.bytes(); ++i) bytes_ += static_cast<char>(i);
      bytes_.append(gguf_padding(bytes_.size()), '\0');
    }
  }

  GgufFile open(const std::string& bytes) const {
    std::ofstream(folder_ / "a.gguf", std::ios::binary) << bytes;
    return GgufFile(folder_ / "a.gguf");
  }
  std::string refusal(const std::string& bytes) const {
    try {
      open(bytes);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  // A file of version 3 whose counts and what follows are given.
  static std::string made(uint64_t tensors, uint64_t values, const std::string& rest) {
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put(out, tensors);
    put(out, values);
    return out + rest;
  }
  template <class T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static std::string named(const std::string& name) {
    std::string out;
    put<uint64_t>(out, name.size());
    return out + name;
  }
  static std::string tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                            uint64_t offset) {
    std::string out = named(name);
    put(out, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(out, dim);
    put(out, type);
    put(out, offset);
    return out;
  }

  test::TempFolder folder_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::string bytes_;
};

TEST_F(Gguf, WhatIsWrittenIsRead) {
  const GgufFile file = open(bytes_);
  const GgufMetadata& read = file.metadata();
  EXPECT_EQ(read.text("general.architecture"), "llama");
  EXPECT_EQ(read.integer("llama.block_count"), 3);
  EXPECT_EQ(read.number("llama.rope.freq_base"), 0.1);  // not the float32's 0.100000001
  EXPECT_EQ(read.flag("tokenizer.ggml.add_bos_token"), true);
  EXPECT_THAT(read.texts("tokens"), ElementsAre("a", "", "\xE2\x96\x81"));
  EXPECT_THAT(read.integers("types"), ElementsAre(-1, 3));
  EXPECT_THAT(read.numbers("scores"), ElementsAre(0.5, -2));
  EXPECT_EQ(read.integer("heads"), 4);  // of every layer the same
  EXPECT_EQ(read.integer("absent"), std::nullopt);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_THAT(file.find("first")->info.dims, ElementsAre(2, 3));
  EXPECT_EQ(file.find("blocks")->bytes.size(), 68U);
  EXPECT_EQ(file.find("last")->bytes[9], std::byte{9});
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_TRUE(is_gguf_file(folder_ / "a.gguf"));
}

TEST_F(Gguf, ValuesOfAnotherTypeAreNamed) {
  const GgufFile file = open(bytes_);
  const auto refused = [&](const std::function<void(const GgufMetadata&)>& ask) {
    try {
      ask(file.metadata());
      return std::string();
    } catch (const CorruptionError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refused([](const auto& m) { m.integer("general.architecture"); }),
              HasSubstr("a.gguf: general.architecture must be a whole number"));
  EXPECT_THAT(refused([](const auto& m) { m.integer("types"); }), HasSubstr("types must be one value"));
  EXPECT_THAT(refused([](const auto& m) { m.text("tokens"); }), HasSubstr("tokens must be a text"));
  EXPECT_THAT(refused([](const auto& m) { m.texts("scores"); }), HasSubstr("scores must be an array of texts"));
  EXPECT_THAT(refused([](const auto& m) { m.flag("llama.block_count"); }), HasSubstr("must be true or false"));
}

TEST_F(Gguf, ATruncatedFileIsRefusedAtEveryByte) {
  const size_t end_of_last = bytes_.size() - gguf_padding(10);
  for (size_t size = 0; size < end_of_last; ++size)
    ASSERT_THAT(refusal(bytes_.substr(0, size)), HasSubstr("a.gguf")) << size;
  EXPECT_EQ(refusal(bytes_.substr(0, end_of_last)), "");  // padding at the end may be missing
  EXPECT_THAT(refusal(bytes_ + "x"), HasSubstr("its tensors end at"));
}

// Any result but an Error would end the test.
TEST_F(Gguf, FlippedBitsGiveAFileOrAnError) {
  const size_t header = gguf_header(metadata_, tensors_).size();
  int refused = 0;
  for (size_t at = 0; at < header; ++at) {
    std::string damaged = bytes_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    refused += !refusal(damaged).empty();
  }
  EXPECT_GT(refused, 200);
}

// A key that nobody asks for may have any value of its type.
TEST_F(Gguf, WholeNumbersFrom2To63AreRefusedWhereTheyAreAskedFor) {
  std::string large = named("k");
  put<uint32_t>(large, 10);
  put<uint64_t>(large, UINT64_MAX);
  const GgufFile file = open(made(0, 1, large));
  EXPECT_EQ(file.metadata().number("k"), 18446744073709551615.0);
  EXPECT_THAT(test::message_of<CorruptionError>([&] { file.metadata().integer("k"); }),
              HasSubstr("k must be a whole number below 2^63"));
  EXPECT_THAT(test::message_of<CorruptionError>([&] { file.metadata().integers("k"); }), HasSubstr("k must be"));
  const std::string again = gguf_header(file.metadata(), {});
  EXPECT_NE(again.find(std::string(8, '\xFF')), std::string::npos);
}

TEST_F(Gguf, HostileHeadersAreRefusedByName) {
  std::string huge_array = named("k");
  put<uint32_t>(huge_array, 9);  // an array
  put<uint32_t>(huge_array, 8);  // of texts
  put<uint64_t>(huge_array, uint64_t{1} << 61);
  EXPECT_THAT(refusal(made(0, 1, huge_array)), HasSubstr("\"k\" says that it has 2305843009213693952 entries"));
  std::string nested = named("k");
  put<uint32_t>(nested, 9);
  put<uint32_t>(nested, 9);
  EXPECT_THAT(refusal(made(0, 1, nested)), HasSubstr("array of arrays"));
  std::string type = named("k");
  put<uint32_t>(type, 13);
  EXPECT_THAT(refusal(made(0, 1, type)), HasSubstr("\"k\" has the type 13"));
  std::string flag = named("k");
  put<uint32_t>(flag, 7);
  flag += '\2';
  EXPECT_THAT(refusal(made(0, 1, flag)), HasSubstr("neither true nor false"));
  std::string length;
  put<uint64_t>(length, UINT64_MAX);
  EXPECT_THAT(refusal(made(0, 1, length)), HasSubstr("a key says that it has"));
  std::string twice = named("k");
  put<uint32_t>(twice, 0);
  twice += '\1';
  EXPECT_THAT(refusal(made(0, 2, twice + twice)), HasSubstr("\"k\" appears twice"));
  std::string alignment = named("general.alignment");
  put<uint32_t>(alignment, 4);
  put<uint32_t>(alignment, 24);
  EXPECT_THAT(refusal(made(0, 1, alignment)), HasSubstr("no power of two"));
  EXPECT_THAT(refusal(made(uint64_t{1} << 60, 0, "")), HasSubstr("ends within a number"));
}

TEST_F(Gguf, HostileTensorsAreRefusedByName) {
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {}, 0, 0))), HasSubstr("\"w\" has 0 dims"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {1, 1, 1, 1, 1}, 0, 0))), HasSubstr("\"w\" has 5 dims"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0))),
              HasSubstr("cannot be stored"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {0}, 0, 0))), HasSubstr("a dim of 0"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {uint64_t{1} << 59}, 28, 0))), HasSubstr("after the file's end"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {4}, 4, 0))), HasSubstr("the type 4, which is none of ggml's"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {33}, 8, 0))), HasSubstr("not blocks of 32"));
  EXPECT_THAT(refusal(made(1, 0, tensor("w", {4}, 0, 32))), HasSubstr("said to begin at 32"));
  EXPECT_THAT(refusal(made(2, 0, tensor("w", {4}, 0, 0) + tensor("w", {4}, 0, 32)) + std::string(64, 'x')),
              HasSubstr("the tensor \"w\" appears twice"));
  EXPECT_THAT(refusal(made(2, 0, tensor("w", {4}, 0, 0) + tensor("v", {4}, 0, 0)) + std::string(64, 'x')),
              HasSubstr("not after the previous tensor"));
}

TEST_F(Gguf, OtherVersionsAreRefusedWithTheWayOut) {
  std::string other = bytes_;
  other[4] = 1;
  EXPECT_THAT(refusal(other), HasSubstr("GGUF version 1; Witan reads versions 2 and 3"));
  other[4] = 2;
  EXPECT_EQ(refusal(other), "");
  other.replace(4, 4, std::string("\0\0\0\3", 4));
  EXPECT_THAT(refusal(other), HasSubstr("big-endian"));
  EXPECT_THAT(refusal("GGML and more"), HasSubstr("does not begin with GGUF"));
}

}  // namespace
}  // namespace witan
