// Tests masters that are stored in halves: files hold plain float32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint_support.h"
#include "support/optimizer.h"

namespace witan {
namespace {

using namespace test;

constexpr const char* kName = "master/w";
const Shape kGlobal = {7, 40000};  // pieces end within rows

// Rows [first, first + rows) of the global master, as one float32 tensor.
StateTensor whole(Stream& stream, int64_t first, int64_t rows) {
  const Tensor local = stream.empty(kGlobal.with(0, rows), DType::f32);
  for (int64_t i = 0; i < local.elements(); ++i)
    local.data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(first * kGlobal[1] + i) * 0x3FFFu);
  return {kName, local, kGlobal, rows_of(kGlobal, first, rows)};
}
StateTensor halves(Stream& stream, int64_t first, int64_t rows) {
  const Tensor value = stream.empty(kGlobal.with(0, rows), DType::bf16);
  const Tensor remainder = testing::split_into(stream, value, whole(stream, first, rows).local);
  return {kName, value, kGlobal, rows_of(kGlobal, first, rows), true, remainder};
}

using Make = StateTensor (*)(Stream&, int64_t first, int64_t rows);

// Saves a checkpoint with `size` ranks.
fs::path save(const fs::path& folder, int64_t step, int size, Make make) {
  on_ranks(size, [&](Group& world, Stream& stream) {
    const auto [first, rows] = share(kGlobal[0], world.rank(), size);
    save_checkpoint(world, stream, folder, {step, {make(stream, first, rows)}, Json::object(), {}});
  });
  return folder / step_folder_name(step);
}

// Every number is restored; the quiet NaN stands for all NaNs.
TEST(Split, FilesEqualThoseOfFloat32Masters) {
  const TempFolder folder;
  const fs::path one = save(folder.path(), 1, 2, whole), two = save(folder.path(), 2, 2, halves);
  for (const char* shard : {"shard-00000.safetensors", "shard-00001.safetensors"}) {
    const SafetensorsFile plain(one / shard), joined(two / shard);
    ASSERT_EQ(joined.tensors().size(), 1u);
    const auto &expected = plain.tensors()[0], &found = joined.tensors()[0];
    EXPECT_EQ(found.info.name, expected.info.name);
    EXPECT_EQ(found.info.dtype, DType::f32);
    ASSERT_EQ(found.bytes.size(), expected.bytes.size());
    for (size_t at = 0; at < found.bytes.size(); at += sizeof(float)) {
      float was = 0, is = 0;
      std::memcpy(&was, expected.bytes.data() + at, sizeof was);
      std::memcpy(&is, found.bytes.data() + at, sizeof is);
      const uint32_t bits = std::isnan(was) ? 0x7FC00000u : std::bit_cast<uint32_t>(was);
      ASSERT_EQ(std::bit_cast<uint32_t>(is), bits) << at;
    }
  }
}

TEST(Split, LoadsHalvesFromFilesOfEitherKindInAnyLayout) {
  const TempFolder folder;
  for (const Make make : {Make{whole}, Make{halves}}) {
    const Checkpoint saved = open_checkpoint(save(folder.path(), 1, 3, make));
    for (const int readers : {1, 2, 7, 8})
      on_ranks(readers, [&](Group& world, Stream& stream) {
        const auto [first, rows] = share(kGlobal[0], world.rank(), readers);
        const StateTensor expected = halves(stream, first, rows);
        StateTensor found = expected;
        found.local = stream.zeros(expected.local.shape(), DType::bf16);
        found.remainder = stream.zeros(expected.local.shape(), kRemainder);
        load_tensors(world, stream, saved, {found});
        EXPECT_EQ(bytes_of(found.local), bytes_of(expected.local));
        EXPECT_EQ(bytes_of(found.remainder), bytes_of(expected.remainder));
      });
  }
}

// If a weight was rounded to even, which differs from the halves, the master that is loaded later decides.
TEST(Split, WeightsFollowTheirMaster) {
  const TempFolder folder;
  const auto tie = std::bit_cast<float>(0x3F808000u);  // between 3F80, which is even, and 3F81
  on_ranks(1, [&](Group& world, Stream& stream) {
    const Tensor value = stream.empty({1}, DType::bf16), master = stream.empty({1}, DType::f32);
    value.data<bf16>()[0] = bf16(tie);
    master.data<float>()[0] = tie;
    save_checkpoint(world, stream, folder.path(),
                    {1, {{"w", value, {1}, {0, 1}}, {kName, master, {1}, {0, 1}}}, Json::object(), {}});
    const Tensor remainder = stream.zeros({1}, kRemainder);
    load_tensors(world, stream, open_checkpoint(folder / step_folder_name(1)),
                 {{"w", value, {1}, {0, 1}}, {kName, value, {1}, {0, 1}, true, remainder}});
    EXPECT_EQ(value.data<bf16>()[0].bits, 0x3F81);
    EXPECT_EQ(testing::joined(value, remainder)[0], tie);
  });
}

// Like whole(), but with numbers in float16's range, most of them rounded and many to 0.
StateTensor within_float16(Stream& stream, int64_t first, int64_t rows) {
  StateTensor all = whole(stream, first, rows);
  for (float& number : all.local.span<float>())
    number = std::isfinite(number) ? std::fmod(number, 1000.0f) + 0.0f : 1.5f;  // no negative zero
  return all;
}
StateTensor in_float16(Stream& stream, int64_t first, int64_t rows) {
  const Tensor numbers = within_float16(stream, first, rows).local;
  const Tensor value = stream.empty(numbers.shape(), DType::f16), rest = stream.empty(numbers.shape(), DType::f32);
  split_from_host(value, rest, 0, numbers.raw(), numbers.elements());
  return {kName, value, kGlobal, rows_of(kGlobal, first, rows), true, rest};
}

TEST(Split, RoundTripsMastersOfFloat16Values) {
  const TempFolder folder;
  const fs::path one = save(folder.path(), 1, 2, within_float16), two = save(folder.path(), 2, 2, in_float16);
  for (const char* shard : {"shard-00000.safetensors", "shard-00001.safetensors"}) {
    const SafetensorsFile plain(one / shard), joined(two / shard);
    EXPECT_TRUE(std::ranges::equal(joined.tensors()[0].bytes, plain.tensors()[0].bytes)) << shard;
  }
  on_ranks(3, [&](Group& world, Stream& stream) {
    const auto [first, rows] = share(kGlobal[0], world.rank(), 3);
    const StateTensor expected = in_float16(stream, first, rows);
    StateTensor found = expected;
    found.local = stream.zeros(expected.local.shape(), DType::f16);
    found.remainder = stream.zeros(expected.local.shape(), DType::f32);
    load_tensors(world, stream, open_checkpoint(one), {found});
    EXPECT_EQ(bytes_of(found.local), bytes_of(expected.local));
    EXPECT_EQ(bytes_of(found.remainder), bytes_of(expected.remainder));
  });
}

TEST(Split, RefusesHalvesThatDoNotFit) {
  testing::Rank rank(1, 1 << 20);
  const auto refusal = [&](const Tensor& upper, const Tensor& lower) {
    return message_of<ShapeError>([&] { check_state({"m", upper, {2}, {0, 2}, true, lower}); });
  };
  const auto of = [&](int64_t n, DType dtype) { return rank.stream.empty({n}, dtype); };
  check_state({"m", of(2, DType::bf16), {2}, {0, 2}, true, of(2, DType::bf16)});
  const std::string start = "checkpoint: \"m\" must be two tensors of 16-bit halves with one shape, got ";
  EXPECT_EQ(refusal(of(2, DType::bf16), of(2, DType::f32)), start + "bfloat16 [2] and float32 [2]");
  EXPECT_EQ(refusal(of(2, DType::bf16), of(3, DType::bf16)), start + "bfloat16 [2] and bfloat16 [3]");
  EXPECT_EQ(refusal(of(2, DType::f32), of(2, DType::bf16)), start + "float32 [2] and bfloat16 [2]");
  check_state({"m", of(2, DType::f16), {2}, {0, 2}, true, of(2, DType::f32)});
  EXPECT_EQ(refusal(of(2, DType::f16), of(2, DType::bf16)),
            "checkpoint: \"m\" must be a float16 tensor and its float32 remainder with one shape, got float16 [2] and "
            "bfloat16 [2]");
}

}  // namespace
}  // namespace witan
