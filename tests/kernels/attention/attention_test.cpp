#include "witan/kernels/attention/attention.h"

#include <cstring>
#include <limits>

#include "support/attention.h"
#include "support/dropout.h"

namespace witan {
namespace {

using testing::close;
using testing::dropout_of;
using testing::factor_of;
using testing::Rank;
using testing::values;

using Size = testing::AttentionSize;
using Results = testing::AttentionResults;

struct Case {
  Size size;
  kernels::AttentionInputs in;
  Tensor dy;

  Case(Rank& rank, const Size& s, DType dtype, const Tensor& ids = {})
      : size(s),
        in{.q = rank.normal(s.queries(), dtype, "q"),
           .k = rank.normal(s.keys(), dtype, "k"),
           .v = rank.normal(s.values(), dtype, "v"),
           .sequence_ids = ids,
           .scale = 1 / std::sqrt(static_cast<double>(s.hd)),
           .window = s.window},
        dy(rank.normal(s.results(), dtype, "dy")) {}

  Results run(Rank& rank) const {
    const DType dtype = in.q.dtype();
    Results r{rank.poisoned(size.results(), dtype), rank.poisoned(size.lse(), accumulator(dtype)),
              rank.poisoned(size.queries(), dtype), rank.poisoned(size.keys(), dtype),
              rank.poisoned(size.values(), dtype)};
    kernels::attention_forward(rank.stream, r.y, r.lse, in);
    kernels::attention_backward(rank.stream, {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
    return r;
  }
};

// Textbook attention in float64, with every probability in memory.
struct Reference {
  std::vector<double> y, lse, dq, dk, dv;

  explicit Reference(const Case& c) : s_(c.size), scale_(c.in.scale) {
    dropout_ = c.in.dropout;
    q_ = values(c.in.q), k_ = values(c.in.k), v_ = values(c.in.v), dy_ = values(c.dy);
    y.resize(dy_.size()), lse.resize(static_cast<size_t>(s_.B * s_.H * s_.S)), dq.resize(q_.size());
    dk.resize(k_.size()), dv.resize(v_.size());
    for (int64_t b = 0; b < s_.B; ++b)
      for (int64_t h = 0; h < s_.H; ++h)
        for (int64_t i = 0; i < s_.S; ++i)
          query(b, h, i, c.in.sequence_ids.defined() ? c.in.sequence_ids.data<int32_t>() + b * s_.S : nullptr);
  }

 private:
  static double dot(const double* a, const double* b, int64_t width) {
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
    return sum;
  }
  void query(int64_t b, int64_t h, int64_t i, const int32_t* ids) {
    const int64_t row = (b * s_.S + i) * s_.H + h;
    const double *q = &q_[size_t(row * s_.hd)], *dy = &dy_[size_t(row * s_.hd_v)];
    const auto key_row = [&](int64_t j) { return size_t((b * s_.S + j) * s_.G + h / (s_.H / s_.G)); };
    const auto key_at = [&](int64_t j) { return key_row(j) * size_t(s_.hd); };
    const auto value_at = [&](int64_t j) { return key_row(j) * size_t(s_.hd_v); };
    std::vector<int64_t> seen;
    for (int64_t j = 0; j <= i; ++j)
      if ((s_.window == 0 || j > i - s_.window) && (!ids || ids[j] == ids[i])) seen.push_back(j);
    std::vector<double> p;
    double sum = 0, pull = 0;
    for (const int64_t j : seen) p.push_back(scale_ * dot(q, &k_[key_at(j)], s_.hd));
    const double top = *std::ranges::max_element(p);
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse[size_t((b * s_.H + h) * s_.S + i)] = top + std::log(sum);
    std::vector<double> mask;
    for (const int64_t j : seen)
      mask.push_back(factor_of(dropout_, ((b * s_.H + h) * s_.S + i) * ((s_.S + 3) / 4 * 4) + j));
    for (size_t n = 0; n < seen.size(); ++n) pull += mask[n] * p[n] * dot(dy, &v_[value_at(seen[n])], s_.hd_v);
    for (size_t n = 0; n < seen.size(); ++n) {
      const size_t key = key_at(seen[n]), value = value_at(seen[n]);
      const double ds = scale_ * p[n] * (mask[n] * dot(dy, &v_[value], s_.hd_v) - pull);
      for (size_t d = 0; d < size_t(s_.hd_v); ++d) {
        y[size_t(row * s_.hd_v) + d] += mask[n] * p[n] * v_[value + d];
        dv[value + d] += mask[n] * p[n] * dy[d];
      }
      for (size_t d = 0; d < size_t(s_.hd); ++d) {
        dq[size_t(row * s_.hd) + d] += ds * k_[key + d];
        dk[key + d] += ds * q[d];
      }
    }
  }

  Size s_;
  double scale_;
  kernels::Dropout dropout_;
  std::vector<double> q_, k_, v_, dy_;
};

void expect_reference(Rank& rank, const Case& c, double tolerance) {
  SCOPED_TRACE(::testing::Message() << c.size << " " << name_of(c.in.q.dtype()));
  const Results got = c.run(rank);
  const Reference expected(c);
  EXPECT_TRUE(close(values(got.y), expected.y, tolerance, tolerance)) << "y";
  EXPECT_TRUE(close(values(got.lse), expected.lse, std::min(tolerance, 1e-4), tolerance)) << "lse";
  EXPECT_TRUE(close(values(got.dq), expected.dq, 4 * tolerance, tolerance)) << "dq";
  EXPECT_TRUE(close(values(got.dk), expected.dk, 8 * tolerance, tolerance)) << "dk";
  EXPECT_TRUE(close(values(got.dv), expected.dv, 8 * tolerance, tolerance)) << "dv";
}

double tolerance_of(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 2e-2;
}

// [B, S] ids from the lengths of each row's documents; a `stride` other than 1 makes them unsorted.
Tensor documents(Rank& rank, int64_t S, const std::vector<std::vector<int64_t>>& lengths, int32_t stride = 1) {
  std::vector<int32_t> ids;
  for (const auto& row : lengths)
    for (size_t document = 0; document < row.size(); ++document)
      ids.insert(ids.end(), static_cast<size_t>(row[document]), static_cast<int32_t>(document) * stride % 7);
  return rank.tensor<int32_t>({static_cast<int64_t>(lengths.size()), S}, ids);
}

const std::vector<int64_t> kWindows = {1, 2, 7, 64, 100, 1000};  // within a tile, a tile, several tiles, everything

const std::vector<Size> kSizes = {{1, 1, 1, 1, 1},    {2, 1, 4, 2, 16},   {1, 5, 2, 1, 3},   {2, 67, 4, 2, 20},
                                  {1, 130, 6, 2, 64}, {1, 300, 2, 2, 32}, {3, 33, 5, 1, 65}, {1, 64, 8, 8, 48}};

TEST(Attention, MatchesTheTextbook) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Size& size : kSizes) expect_reference(rank, Case(rank, size, dtype), tolerance_of(dtype));
}

TEST(Attention, WindowsMatchTheTextbook) {
  for (const int threads : {1, 3}) {  // the backward is divided in two ways
    Rank rank(threads);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const Size& size : kSizes)
        for (const int64_t window : kWindows)
          expect_reference(rank, Case(rank, size.with_window(window), dtype), tolerance_of(dtype));
  }
}

TEST(Attention, ValuesOfAnotherHeadSizeMatchTheTextbook) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const Size& size : {Size{2, 67, 4, 2, 20, 1}, Size{1, 5, 2, 1, 3, 8}, Size{1, 130, 6, 2, 96, 64},
                               Size{2, 70, 3, 1, 1, 33}, Size{1, 150, 4, 2, 24, 40, 37}})
        expect_reference(rank, Case(rank, size, dtype), tolerance_of(dtype));
  }
}

// Combines both with documents and dropout.
TEST(Attention, WindowsWithDocumentsAndDropoutMatchTheTextbook) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const int64_t window : kWindows) {
        const Size size{3, 200, 4, 2, 24, 17, window};
        const std::vector<std::vector<int64_t>> lengths = {{1, 63, 65, 1, 70}, {200}, {100, 28, 1, 1, 1, 69}};
        Case c(rank, size, dtype, documents(rank, size.S, lengths, window % 2 == 0 ? 1 : 3));
        expect_reference(rank, c, tolerance_of(dtype));
        c.in.dropout = dropout_of(rank, 0.3);
        expect_reference(rank, c, 2 * tolerance_of(dtype));
      }
  }
}

TEST(Attention, AWindowOfTheWholeSequenceChangesNothing) {
  Rank rank(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Size size{2, 150, 4, 2, 20};
    const auto expected = Case(rank, size, dtype).run(rank).all();
    for (const int64_t window : {150, 151, 100000}) {
      const auto got = Case(rank, size.with_window(window), dtype).run(rank).all();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(values(got[i]), values(expected[i])) << "output " << i;
    }
  }
}

// Tiles of keys outside the window of every query of a tile are skipped, so their content does not matter.
TEST(Attention, KeysOutOfTheWindowAreNotRead) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const Size size{1, 300, 2, 1, 16, 16, 30};
    const Case clean(rank, size, DType::f32), dirty(rank, size, DType::f32);
    for (const Tensor& x : {dirty.in.k, dirty.in.v}) std::fill_n(x.data<float>(), 64 * size.hd, std::nanf(""));
    const Results expected = clean.run(rank), got = dirty.run(rank);
    for (const auto& [a, b] : {std::pair{got.y, expected.y}, std::pair{got.dq, expected.dq},
                               std::pair{got.dk, expected.dk}, std::pair{got.dv, expected.dv}})
      EXPECT_EQ(values(a.narrow(1, 192, 108)), values(b.narrow(1, 192, 108)));
  }
}

TEST(Attention, DocumentsMatchTheTextbook) {
  Rank rank;
  const Size size{3, 200, 4, 2, 24};
  const std::vector<std::vector<int64_t>> lengths = {{1, 63, 65, 1, 70}, {200}, {100, 28, 1, 1, 1, 69}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int32_t stride : {1, 3})
      expect_reference(rank, Case(rank, size, dtype, documents(rank, size.S, lengths, stride)), tolerance_of(dtype));
}

TEST(Attention, DropoutMatchesTheTextbook) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Size& size : kSizes)
      for (const double p : {0.1, 0.6}) {
        Case c(rank, size, dtype);
        c.in.dropout = dropout_of(rank, p);
        expect_reference(rank, c, tolerance_of(dtype) / (1 - p));
      }
  Case packed(rank, {2, 200, 4, 2, 24}, DType::f64, documents(rank, 200, {{1, 63, 65, 1, 70}, {200}}));
  packed.in.dropout = dropout_of(rank, 0.3);
  expect_reference(rank, packed, 1e-12);
}

TEST(Attention, DropoutHasTheSameBitsOnAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Size& size : {Size{1, 301, 4, 2, 40}, Size{2, 129, 3, 1, 16}, Size{8, 70, 4, 2, 16}}) {
      const auto run = [&](int threads) {
        Rank rank(threads);
        Case c(rank, size, dtype);
        c.in.dropout = dropout_of(rank, 0.2);
        std::vector<std::vector<double>> all;
        for (const Tensor& x : c.run(rank).all()) all.push_back(values(x));
        return all;
      };
      EXPECT_EQ(run(1), run(3)) << size;
    }
}

TEST(Attention, IdsNeedNotBeContiguous) {
  Rank rank;
  const Size size{1, 150, 2, 1, 16};
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < size.S; ++i) ids.push_back((i * i + i / 9) % 5 - 2);
  expect_reference(rank, Case(rank, size, DType::f64, rank.tensor<int32_t>({1, size.S}, ids)), 1e-12);
}

// A document's results equal those of the document alone. The content of other documents does not matter, not even NaN
// if they share no tile.
TEST(Attention, OtherDocumentsTilesAreNotRead) {
  Rank rank;
  const Size size{1, 256, 2, 1, 16};
  const Tensor ids = documents(rank, size.S, {{128, 128}});
  const Case clean(rank, size, DType::f32, ids), dirty(rank, size, DType::f32, ids);
  for (const Tensor& x : {dirty.in.q, dirty.in.k, dirty.in.v, dirty.dy})
    std::fill_n(x.data<float>(), x.elements() / 2, std::nanf(""));
  const Results expected = clean.run(rank), got = dirty.run(rank);
  for (const auto& [a, b] : {std::pair{got.y, expected.y}, std::pair{got.dq, expected.dq},
                             std::pair{got.dk, expected.dk}, std::pair{got.dv, expected.dv}})
    EXPECT_EQ(values(a.narrow(1, 128, 128).reshape({a.elements() / 2})),
              values(b.narrow(1, 128, 128).reshape({b.elements() / 2})));
}

// Packing changes no bit: tiles of keys begin at a document's first key, and gradients are summed pair by pair.
TEST(Attention, ADocumentHasTheSameBitsAloneAndPackedAnywhere) {
  for (const int threads : {1, 3})  // the backward is divided in two ways
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (const Size& packed :
           {Size{1, 411, 4, 2, 40}, Size{1, 411, 3, 1, 16, 33, 90}, Size{1, 411, 2, 2, 24, 16, 5}}) {
        Rank rank(threads);
        const std::vector<int64_t> lengths = {3, 150, 1, 64, 77, 65, 51};
        const Case together(rank, packed, dtype, documents(rank, packed.S, {lengths}));
        const Results whole = together.run(rank);
        int64_t begin = 0;
        for (const int64_t length : lengths) {
          Size size = packed;
          size.S = length;
          const auto part = [&](const Tensor& x) { return x.narrow(1, begin, length); };
          Case single(rank, size, dtype);
          single.in.q = part(together.in.q), single.in.k = part(together.in.k), single.in.v = part(together.in.v);
          single.dy = part(together.dy);
          SCOPED_TRACE(::testing::Message() << packed << " " << dtype << ", " << length << " from " << begin);
          const Results alone = single.run(rank);
          for (const auto output : {&Results::y, &Results::dq, &Results::dk, &Results::dv})
            EXPECT_EQ(values(alone.*output), values(part(whole.*output)));
          for (int64_t h = 0; h < packed.H; ++h)
            EXPECT_EQ(values(alone.lse.narrow(1, h, 1)), values(whole.lse.narrow(1, h, 1).narrow(2, begin, length)));
          begin += length;
        }
      }
}

TEST(Attention, NaNReachesOnlyTheQueriesThatSeeIt) {
  Rank rank;
  const Size size{1, 100, 1, 1, 16};
  const Case c(rank, size, DType::f32);
  c.in.k.data<float>()[70 * 16] = std::nanf("");
  const Results r = c.run(rank);
  for (int64_t i = 0; i < size.S; ++i) EXPECT_EQ(std::isnan(r.y.data<float>()[i * 16]), i >= 70) << i;
  for (int64_t i = 0; i < size.S; ++i) EXPECT_EQ(std::isnan(r.lse.data<float>()[i]), i >= 70) << i;
}

// Scores are in the thousands: without the running maximum, exp would overflow.
TEST(Attention, LargeScoresStayFinite) {
  Rank rank;
  Case c(rank, {1, 90, 2, 2, 16}, DType::f64);
  c.in.scale = 500;
  expect_reference(rank, c, 1e-9);
  c.in.scale = -500;
  expect_reference(rank, c, 1e-9);
}

// One thread takes a group at a time; three threads divide so few groups by queries, and then by keys.
TEST(Attention, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Size& size : {Size{1, 700, 4, 2, 40}, Size{2, 129, 3, 1, 16}, Size{8, 70, 4, 2, 16},
                             Size{1, 700, 4, 2, 40, 24, 90}, Size{2, 129, 3, 1, 16, 33, 5}}) {
      Rank one(1), three(3);
      std::vector<std::vector<int64_t>> lengths(size_t(size.B),
                                                {size.S / 3, size.S / 2, size.S - size.S / 3 - size.S / 2});
      for (const bool with_ids : {false, true}) {
        const auto ids = [&](Rank& rank) { return with_ids ? documents(rank, size.S, lengths) : Tensor(); };
        const auto a = Case(one, size, dtype, ids(one)).run(one).all();
        const auto b = Case(three, size, dtype, ids(three)).run(three).all();
        for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(values(a[i]), values(b[i])) << size << ", output " << i;
      }
    }
}

TEST(Attention, RowsDoNotDependOnTheBatch) {
  Rank rank(3);
  const Size size{9, 200, 4, 2, 32};
  const Case batch(rank, size, DType::f32);
  const auto whole = batch.run(rank).all();
  const auto row = [](const Tensor& x, int64_t b) { return x.narrow(0, b, 1); };
  for (const int64_t b : {0, 4, 8}) {
    Case single(rank, {1, size.S, size.H, size.G, size.hd}, DType::f32);
    single.in.q = row(batch.in.q, b), single.in.k = row(batch.in.k, b), single.in.v = row(batch.in.v, b);
    single.dy = row(batch.dy, b);
    const auto alone = single.run(rank).all();
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(values(alone[i]), values(row(whole[i], b))) << "output " << i;
  }
}

TEST(Attention, AcceptsEmptyTensors) {
  Rank rank;
  for (const Size& size : {Size{0, 5, 2, 1, 4}, Size{2, 0, 2, 1, 4}}) Case(rank, size, DType::f32).run(rank);
}

TEST(Attention, CostCountsTheCausalHalf) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Size s{2, 10, 4, 2, 8};
  const auto tensor = [&](const Shape& shape) { return meta.empty(shape, DType::f32); };
  const Tensor q = tensor(s.queries()), k = tensor(s.keys()), lse = tensor(s.lse());
  kernels::attention_forward(meta, q, lse, {q, k, k, {}, 1});
  const double pairs = 2 * 4 * 10 * 11 / 2;
  EXPECT_EQ(meta.flops(), pairs * 4 * 8);
  EXPECT_EQ(meta.costs().at("other").at("attention_forward").bytes, 4.0 * (2 * 640 + 2 * 320 + 80));
  meta.reset_costs();
  kernels::attention_backward(meta, {q, k, k}, q, q, lse, {q, k, k, {}, 1});
  EXPECT_EQ(meta.flops(), 2.5 * pairs * 4 * 8);
  meta.reset_costs();
  const Tensor cache = tensor({2, 50, 2, 8});
  kernels::attention_decode(meta, q, q, cache, cache, 7, 1);
  EXPECT_EQ(meta.flops(), 2 * 4 * (7 * 10 + 55) * 4 * 8.0);
  EXPECT_EQ(meta.costs().at("other").at("attention_decode").bytes, 4.0 * (2 * 640 + 2 * 2 * 17 * 16));
}

TEST(Attention, CostCountsTheWindowAndTheSizeOfValues) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  for (const int64_t window : {1, 3, 10, 12}) {
    const Size s{2, 10, 4, 2, 8, 6, window};
    const auto tensor = [&](const Shape& shape) { return meta.empty(shape, DType::f32); };
    const Tensor q = tensor(s.queries()), k = tensor(s.keys()), v = tensor(s.values()), y = tensor(s.results()),
                 lse = tensor(s.lse());
    kernels::AttentionInputs in{q, k, v, {}, 1};
    in.window = window;
    double pairs = 0;
    for (int64_t i = 0; i < s.S; ++i) pairs += 2.0 * 4 * static_cast<double>(std::min(i + 1, window));
    meta.reset_costs();
    kernels::attention_forward(meta, y, lse, in);
    EXPECT_EQ(meta.flops(), pairs * 2 * (8 + 6));
    EXPECT_EQ(meta.costs().at("other").at("attention_forward").bytes, 4.0 * (640 + 480 + 320 + 240 + 80));
    meta.reset_costs();
    kernels::attention_backward(meta, {q, k, v}, y, y, lse, in);
    EXPECT_EQ(meta.flops(), pairs * 2 * (3 * 8 + 2 * 6));
    meta.reset_costs();
    const Tensor keys = tensor({2, 50, 2, 8}), cached = tensor({2, 50, 2, 6});
    kernels::attention_decode(meta, y, q, keys, cached, 30, 1, window);
    EXPECT_EQ(meta.flops(), 2.0 * 4 * 10 * static_cast<double>(window) * 2 * (8 + 6));
    const double read = 2 * static_cast<double>(window + 9) * 2 * (8 + 6);
    EXPECT_EQ(meta.costs().at("other").at("attention_decode").bytes, 4.0 * (640 + 480 + read));
  }
}

// Prefills in pieces, then decodes token by token, through a cache whose unused part is poisoned; expects the bits of
// the full kernel.
TEST(AttentionDecode, GivesTheBitsOfTheFullKernel) {
  Rank rank(3);
  const int64_t Smax = 160;
  const auto check = [&](const Size& s, DType dtype) {
    SCOPED_TRACE(::testing::Message() << s << " " << name_of(dtype));
    const Case c(rank, s, dtype);
    const auto expected = values(c.run(rank).y);
    const Tensor k_cache = rank.poisoned({s.B, Smax, s.G, s.hd}, dtype);
    const Tensor v_cache = rank.poisoned({s.B, Smax, s.G, s.hd_v}, dtype);
    const auto append = [&](const Tensor& cache, const Tensor& from, int64_t past, int64_t count) {
      const int64_t row = s.G * from.size(3) * size_of(dtype);
      for (int64_t b = 0; b < s.B; ++b)
        std::memcpy(cache.raw() + (b * Smax + past) * row, from.raw() + (b * s.S + past) * row, size_t(count * row));
    };
    int64_t past = 0;
    for (const int64_t count : {70, 1, 1, 62, 1, 15}) {
      append(k_cache, c.in.k, past, count);
      append(v_cache, c.in.v, past, count);
      const Tensor q = rank.stream.empty({s.B, count, s.H, s.hd}, dtype);
      const Tensor y = rank.poisoned({s.B, count, s.H, s.hd_v}, dtype);
      const int64_t row = s.H * s.hd_v, bytes = s.H * s.hd * size_of(dtype);
      for (int64_t b = 0; b < s.B; ++b)
        std::memcpy(q.raw() + b * count * bytes, c.in.q.raw() + (b * s.S + past) * bytes, size_t(count * bytes));
      kernels::attention_decode(rank.stream, y, q, k_cache, v_cache, past, c.in.scale, s.window);
      const auto got = values(y);
      for (int64_t b = 0; b < s.B; ++b)
        EXPECT_TRUE(std::equal(got.begin() + b * count * row, got.begin() + (b + 1) * count * row,
                               expected.begin() + (b * s.S + past) * row))
            << "batch row " << b << ", positions from " << past;
      past += count;
    }
    EXPECT_EQ(past, s.S);
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t window : {0, 1, 33, 100, 200})
      for (const int64_t hd_v : {20, 12, 40}) check({2, 150, 6, 2, 20, hd_v, window}, dtype);
}

}  // namespace
}  // namespace witan
