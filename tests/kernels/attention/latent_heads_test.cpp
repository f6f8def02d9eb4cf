#include <numeric>

#include "support/rank.h"
#include "witan/kernels/attention/heads.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

struct Case {
  int64_t tokens, heads, still, turning, value;
  bool interleaved, rotates = true;
};

const std::vector<Case> kCases = {{7, 3, 4, 6, 5, false}, {7, 3, 4, 6, 5, true},        {3, 1, 5, 2, 3, false},
                                  {9, 2, 8, 8, 8, true},  {5, 2, 3, 4, 6, true, false}, {0, 2, 4, 4, 4, false}};

kernels::RopeArgs rope_of(const Case& c) {
  kernels::RopeArgs args{100, c.rotates ? c.turning : 0, c.interleaved, false};
  args.scaling.magnitude = 1.25;
  return args;
}

Tensor positions_of(Rank& rank, int64_t tokens) {
  std::vector<int32_t> all(static_cast<size_t>(tokens));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i * 3 % 11);
  return rank.tensor<int32_t>({tokens}, all);
}

Tensor table_of(Rank& rank, const Case& c, DType dtype) {
  if (!c.rotates) return {};
  const Tensor table = rank.poisoned({c.tokens, c.turning}, accumulator(dtype));
  kernels::rotary_table(rank.stream, table, positions_of(rank, c.tokens), rope_of(c));
  return table;
}

template <class Make>
kernels::Heads heads_of(const Case& c, const Make& make) {
  const Shape key{c.tokens, c.heads, c.still + c.turning};
  return {make(key, "q"), make(key, "k"), make(key.with(2, c.value), "v")};
}

template <class Make>
kernels::LatentRows rows_of(const Case& c, const Make& make) {
  return {make(Shape{c.tokens, c.heads * (c.still + c.turning)}, "rows of q"),
          make(Shape{c.tokens, c.heads * (c.still + c.value)}, "rows of kv"),
          make(Shape{c.tokens, c.turning}, "rows of the key")};
}

// The rotated channels of one head, computed by kernels::rope.
std::vector<double> turned(Rank& rank, const Case& c, const std::vector<double>& channels, int64_t token) {
  if (!c.rotates) return channels;
  const Tensor x = rank.tensor<double>({1, 1, 1, c.turning}, channels), y = rank.poisoned(x.shape(), DType::f64);
  const int32_t position = positions_of(rank, c.tokens).data<int32_t>()[token];
  kernels::rope(rank.stream, y, rank.poisoned({1, c.turning}, DType::f64), x, rank.tensor<int32_t>({1, 1}, {position}),
                rope_of(c));
  return values(y);
}

TEST(LatentHeads, PlacesAndRotatesChannels) {
  Rank rank;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(dtype, " ", c.tokens, " tokens of ", c.heads, " heads, interleaved ", c.interleaved));
      const auto rows =
          rows_of(c, [&](const Shape& shape, const char* name) { return rank.normal(shape, dtype, name); });
      const auto heads = heads_of(c, [&](const Shape& shape, const char*) { return rank.poisoned(shape, dtype); });
      kernels::latent_heads(rank.stream, heads, rows, table_of(rank, c, dtype), rope_of(c));
      const auto q = values(rows.q), kv = values(rows.kv), key = values(rows.rope_key);
      std::vector<double> expected_q, expected_k, expected_v;
      const auto append = [](std::vector<double>& to, const std::vector<double>& from, int64_t first, int64_t count) {
        to.insert(to.end(), from.begin() + first, from.begin() + first + count);
      };
      for (int64_t t = 0; t < c.tokens; ++t)
        for (int64_t h = 0; h < c.heads; ++h) {
          const int64_t head = t * c.heads + h, of_q = head * (c.still + c.turning), of_kv = head * (c.still + c.value);
          std::vector<double> turning;
          append(expected_q, q, of_q, c.still);
          append(turning, q, of_q + c.still, c.turning);
          append(expected_q, turned(rank, c, turning, t), 0, c.turning);
          append(expected_k, kv, of_kv, c.still);
          turning.clear();
          append(turning, key, t * c.turning, c.turning);
          append(expected_k, turned(rank, c, turning, t), 0, c.turning);
          append(expected_v, kv, of_kv + c.still, c.value);
        }
      const double tolerance = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 2e-2;
      EXPECT_TRUE(close(values(heads.q), expected_q, tolerance, tolerance));
      EXPECT_TRUE(close(values(heads.k), expected_k, tolerance, tolerance));
      EXPECT_EQ(values(heads.v), expected_v);
    }
}

// Channels [first, first + count) of each row.
std::vector<double> channels(const std::vector<double>& x, int64_t row, int64_t first, int64_t count) {
  std::vector<double> some;
  for (auto at = x.begin(); at != x.end(); at += row) some.insert(some.end(), at + first, at + first + count);
  return some;
}

// They have the bits of the channels that latent_heads() turns.
TEST(LatentHeads, TurnsChannelsAlone) {
  Rank rank;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(dtype, " ", c.tokens, " tokens of ", c.heads, " heads, interleaved ", c.interleaved));
      const auto rows =
          rows_of(c, [&](const Shape& shape, const char* name) { return rank.normal(shape, dtype, name); });
      const auto heads = heads_of(c, [&](const Shape& shape, const char*) { return rank.poisoned(shape, dtype); });
      const kernels::TurnedChannels turned{rank.poisoned({c.tokens, c.heads, c.turning}, dtype),
                                           rank.poisoned({c.tokens, c.turning}, dtype)};
      const Tensor table = table_of(rank, c, dtype);
      kernels::latent_heads(rank.stream, heads, rows, table, rope_of(c));
      kernels::turn_latent_channels(rank.stream, turned, rows.q, rows.rope_key, table, rope_of(c));
      const int64_t hd = c.still + c.turning;
      EXPECT_EQ(values(turned.q), channels(values(heads.q), hd, c.still, c.turning));
      EXPECT_EQ(values(turned.key), channels(values(heads.k), c.heads * hd, c.still, c.turning));
    }
}

double dot(const Tensor& a, const Tensor& b) {
  const auto x = values(a), y = values(b);
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

TEST(LatentHeads, BackwardIsTheTranspose) {
  Rank rank;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const auto rows =
          rows_of(c, [&](const Shape& shape, const char* name) { return rank.normal(shape, dtype, name); });
      const auto gradients =
          heads_of(c, [&](const Shape& shape, const char* name) { return rank.normal(shape, dtype, name); });
      const auto heads = heads_of(c, [&](const Shape& shape, const char*) { return rank.poisoned(shape, dtype); });
      const auto back = rows_of(c, [&](const Shape& shape, const char*) { return rank.poisoned(shape, dtype); });
      const Tensor table = table_of(rank, c, dtype);
      kernels::latent_heads(rank.stream, heads, rows, table, rope_of(c));
      kernels::latent_heads_backward(rank.stream, back, gradients, table, rope_of(c));
      const double forth = dot(heads.q, gradients.q) + dot(heads.k, gradients.k) + dot(heads.v, gradients.v);
      const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-4 : 1;
      EXPECT_NEAR(dot(rows.q, back.q) + dot(rows.kv, back.kv) + dot(rows.rope_key, back.rope_key), forth, tolerance);
    }
}

TEST(LatentHeads, HasTheSameBitsOnAnyNumberOfThreads) {
  const Case c{300, 4, 16, 8, 16, true};
  const auto run = [&](int threads) {
    Rank rank(threads);
    const auto gradients =
        heads_of(c, [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f32, name); });
    const auto rows = rows_of(c, [&](const Shape& shape, const char*) { return rank.poisoned(shape, DType::f32); });
    kernels::latent_heads_backward(rank.stream, rows, gradients, table_of(rank, c, DType::f32), rope_of(c));
    return values(rows.rope_key);
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
