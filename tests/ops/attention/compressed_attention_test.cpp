// Compressed attention against loops in float64 over whole sequences, its gradients against differences, and documents
// alone and packed.
#include "witan/ops/attention/compressed_attention.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using ops::CompressedArgs;
using ops::CompressedPlaces;
using test::message_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

// Two rows of documents: one that begins behind others, one that is shorter than an entry, and padding.
constexpr int64_t kRows = 2, kTokens = 23;
std::vector<int32_t> document_ids() {
  std::vector<int32_t> ids;
  for (const int64_t length : {2, 9, 1, 11})
    ids.insert(ids.end(), static_cast<size_t>(length), static_cast<int32_t>(ids.size()));
  for (const int64_t length : {14, 6})
    ids.insert(ids.end(), static_cast<size_t>(length), static_cast<int32_t>(ids.size()));
  ids.insert(ids.end(), 3, -1);
  return ids;
}

struct Sizes {
  int64_t m;
  bool overlap;
  int64_t topk;  // 0: tokens attend to all entries
};
constexpr Sizes kSizes[] = {{2, true, 0}, {2, true, 2}, {3, false, 0}, {4, true, 99}, {30, false, 0}};
constexpr int64_t kHeads = 3, kChannels = 5, kWindow = 4;

struct Case {
  Case(Rank& rank, const Sizes& of)
      : size(of),
        ids(rank.tensor(Shape{kRows, kTokens}, document_ids())),
        places(ops::compressed_places(rank.stream, ids, ids, of.m)),
        q(rank.normal({kRows, kTokens, kHeads, kChannels}, DType::f64, "q")),
        keys(rank.normal({kRows, kTokens, kChannels}, DType::f64, "keys")),
        sinks(rank.normal({kHeads}, DType::f64, "sinks")),
        kv(rank.normal({kRows, kTokens, width()}, DType::f64, "kv")),
        gate(rank.normal({kRows, kTokens, width()}, DType::f64, "gate")),
        bias(rank.normal({of.m, width()}, DType::f64, "bias")) {
    if (of.topk == 0) return;
    const Tensor index_q = rank.normal({kRows * kTokens, 2, 4}, DType::f64, "index q"),
                 w = rank.normal({kRows * kTokens, 2}, DType::f64, "w"),
                 k = rank.normal({kRows, kernels::entry_slots(kTokens, of.m), 4}, DType::f64, "index k");
    chosen = ops::choose_entries(rank.stream, index_q, w, k, places.tokens, of.m, 1, of.topk);
  }
  int64_t width() const { return kChannels * (size.overlap ? 2 : 1); }
  CompressedArgs args() const { return {kWindow, size.m, 0.7}; }

  Sizes size;
  Tensor ids;
  CompressedPlaces places;
  Tensor q, keys, sinks, kv, gate, bias, chosen;
};

// The entries of the document that begins at token `begin` of the batch, and has `count` tokens.
std::vector<std::vector<double>> entries_by_hand(const Case& in, int64_t begin, int64_t count) {
  const auto kv = values(in.kv), gate = values(in.gate), bias = values(in.bias);
  const int64_t m = in.size.m, w = in.width();
  std::vector<std::vector<double>> all;
  for (int64_t first = 0; first + m <= count; first += m) {
    std::vector<double>& entry = all.emplace_back();
    for (int64_t c = 0; c < kChannels; ++c) {
      double sum = 0, mean = 0;
      const auto add = [&](int64_t token, int64_t j, int64_t column) {
        const auto at = static_cast<size_t>((begin + token) * w + column + c);
        const double weight = std::exp(gate[at] + bias[static_cast<size_t>(j * w + column + c)]);
        sum += weight;
        mean += weight * kv[at];
      };
      for (int64_t j = 0; in.size.overlap && first > 0 && j < m; ++j) add(first - m + j, j, 0);
      for (int64_t j = 0; j < m; ++j) add(first + j, j, in.size.overlap ? kChannels : 0);
      entry.push_back(mean / sum);
    }
  }
  return all;
}

// Calls use(first token of the batch, tokens) for each document.
template <class Use>
void for_documents(const Use& use) {
  const std::vector<int32_t> ids = document_ids();
  for (int64_t at = 0; at < kRows * kTokens;) {
    int64_t end = at;
    while (end < (at / kTokens + 1) * kTokens && ids[static_cast<size_t>(end)] == ids[static_cast<size_t>(at)]) ++end;
    if (ids[static_cast<size_t>(at)] >= 0) use(at, end - at);
    at = end;
  }
}

std::vector<double> attention_by_hand(const Case& in) {
  const auto q = values(in.q), keys = values(in.keys), sinks = values(in.sinks);
  std::vector<double> y(q.size());
  for_documents([&](int64_t begin, int64_t count) {
    const auto entries = entries_by_hand(in, begin, count);
    for (int64_t p = 0; p < count; ++p) {
      const int64_t t = begin + p;
      std::vector<std::vector<double>> seen;
      for (int64_t j = std::max<int64_t>(p - kWindow + 1, 0); j <= p; ++j)
        seen.emplace_back(keys.begin() + (begin + j) * kChannels, keys.begin() + (begin + j + 1) * kChannels);
      for (int64_t i = 0; i < (p + 1) / in.size.m; ++i) {
        const auto chose = [&] {
          const auto of = in.chosen.span<int32_t>().subspan(static_cast<size_t>(t * in.chosen.size(1)),
                                                            static_cast<size_t>(in.chosen.size(1)));
          return std::ranges::find(of, static_cast<int32_t>(i)) != of.end();
        };
        if (!in.chosen.defined() || chose()) seen.push_back(entries[static_cast<size_t>(i)]);
      }
      for (int64_t n = 0; n < kHeads; ++n) {
        double sum = std::exp(sinks[static_cast<size_t>(n)]);
        std::vector<double> mean(kChannels);
        for (const auto& key : seen) {
          double dot = 0;
          for (int64_t c = 0; c < kChannels; ++c)
            dot += q[static_cast<size_t>((t * kHeads + n) * kChannels + c)] * key[static_cast<size_t>(c)];
          const double weight = std::exp(0.7 * dot);
          sum += weight;
          for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * key[c];
        }
        for (size_t c = 0; c < mean.size(); ++c)
          y[static_cast<size_t>((t * kHeads + n) * kChannels) + c] = mean[c] / sum;
      }
    }
  });
  return y;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << i;
}

Var attend(Tape& tape, const Case& in, const std::vector<Var>& at) {
  const Var entries = ops::make_entries(tape, at[3], at[4], at[5], in.size.overlap, in.places);
  return ops::compressed_attention(tape, at[0], at[1], at[2], entries, in.chosen, in.places, in.args());
}

std::vector<Tensor> inputs_of(const Case& in) {
  return {in.q, in.keys, in.sinks, in.kv, in.gate, in.bias};
}

TEST(CompressedAttention, EqualsLoopsOverEachDocument) {
  Rank rank;
  for (const Sizes& size : kSizes) {
    SCOPED_TRACE(cat("entries of ", size.m, " tokens"));
    const Case in(rank, size);
    Tape tape(rank.stream, Tape::Mode::off);
    std::vector<Var> vars;
    for (const Tensor& input : inputs_of(in)) vars.push_back(tape.constant(input));
    expect_near(values(attend(tape, in, vars).value()), attention_by_hand(in), 1e-12);
  }
}

TEST(CompressedAttention, WithoutEntriesIsTheWindow) {
  Rank rank;
  Case in(rank, {kTokens + 1, false, 0});
  in.places = ops::compressed_places(rank.stream, in.ids, in.ids, 0);
  gradcheck(rank, "compressed_attention",
            [&](Tape& tape, const std::vector<Var>& at) {
              return std::vector{ops::compressed_attention(tape, at[0], at[1], at[2], {}, {}, in.places, in.args())};
            },
            {in.q, in.keys, in.sinks});
  Tape tape(rank.stream, Tape::Mode::off);
  expect_near(values(ops::compressed_attention(tape, tape.constant(in.q), tape.constant(in.keys),
                                               tape.constant(in.sinks), {}, {}, in.places, in.args())
                         .value()),
              attention_by_hand(in), 1e-12);
}

TEST(CompressedAttention, GradientsMatchDifferences) {
  Rank rank;
  for (const Sizes& size : kSizes) {
    SCOPED_TRACE(cat("entries of ", size.m, " tokens"));
    const Case in(rank, size);
    gradcheck(rank, "make_entries",
              [&](Tape& tape, const std::vector<Var>& at) {
                return std::vector{ops::make_entries(tape, at[0], at[1], at[2], size.overlap, in.places)};
              },
              {in.kv, in.gate, in.bias});
    gradcheck(
        rank, "compressed_attention",
        [&](Tape& tape, const std::vector<Var>& at) { return std::vector{attend(tape, in, at)}; }, inputs_of(in));
  }
}

TEST(CompressedAttention, TheLargestScoresAreChosen) {
  Rank rank;
  const int64_t m = 2, E = kernels::entry_slots(kTokens, m), T = kRows * kTokens;
  const Tensor ids = rank.tensor(Shape{kRows, kTokens}, document_ids());
  const CompressedPlaces places = ops::compressed_places(rank.stream, ids, ids, m);
  const Tensor q = rank.normal({T, 2, 4}, DType::f64, "q"), w = rank.normal({T, 2}, DType::f64, "w"),
               k = rank.normal({kRows, E, 4}, DType::f64, "k");
  const Tensor chosen = ops::choose_entries(rank.stream, q, w, k, places.tokens, m, 0.5, 3);
  ASSERT_EQ(chosen.shape(), Shape({T, 3}));
  const auto qs = values(q), ws = values(w), ks = values(k);
  for_documents([&](int64_t begin, int64_t count) {
    const int64_t row = begin / kTokens, slot = (begin % kTokens + m - 1) / m;
    for (int64_t p = 0; p < count; ++p) {
      const int64_t t = begin + p;
      std::vector<std::pair<double, int32_t>> scored;
      for (int64_t i = 0; i < (p + 1) / m; ++i) {
        double score = 0;
        for (int64_t h = 0; h < 2; ++h) {
          double dot = 0;
          for (int64_t c = 0; c < 4; ++c)
            dot += qs[static_cast<size_t>((t * 2 + h) * 4 + c)] * ks[static_cast<size_t>((row * E + slot + i) * 4 + c)];
          score += ws[static_cast<size_t>(t * 2 + h)] * std::max(dot, 0.0);
        }
        scored.emplace_back(-score, static_cast<int32_t>(i));
      }
      std::ranges::sort(scored);
      std::vector<int32_t> expected;
      for (size_t i = 0; i < std::min<size_t>(scored.size(), 3); ++i) expected.push_back(scored[i].second);
      std::ranges::sort(expected);
      expected.resize(3, -1);
      const auto of = chosen.span<int32_t>().subspan(static_cast<size_t>(3 * t), 3);
      EXPECT_EQ(std::vector<int32_t>(of.begin(), of.end()), expected) << t;
    }
  });
}

// Tokens in steps of any size make the entries of the whole sequence, to the bit.
TEST(CompressedAttention, EntriesOfStepsAreThoseOfTheSequence) {
  Rank rank;
  constexpr int64_t kLength = 21, kCacheRows = 3, kRow = 1;
  for (const bool overlap : {true, false}) {
    const int64_t m = 4, d = kChannels, wd = d * (overlap ? 2 : 1), E = kernels::entry_slots(kLength, m);
    const Tensor kv = rank.normal({1, kLength, wd}, DType::f32, "kv"),
                 gate = rank.normal({1, kLength, wd}, DType::f32, "gate"), bias = rank.normal({m, wd}, DType::f32, "b");
    Tape tape(rank.stream, Tape::Mode::off);
    const auto whole = values(
        ops::make_entries(tape, tape.constant(kv), tape.constant(gate), tape.constant(bias), overlap,
                          ops::compressed_places(rank.stream, rank.stream.zeros({1, kLength}, DType::i32), {}, m))
            .value());
    const kernels::EntryTails tails{rank.poisoned({kCacheRows, 2 * m, wd}, DType::f32),
                                    rank.poisoned({kCacheRows, 2 * m, wd}, DType::f32)};
    const Tensor cache = rank.stream.zeros({kCacheRows, E, d}, DType::f32);
    int64_t past = 0;
    for (const int64_t count : {1, 1, 9, 3, 1, 6}) {
      std::vector<int32_t> rows(static_cast<size_t>(count), kRow), begins(rows.size(), 0), positions;
      for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<int32_t>(past + i));
      const kernels::SequencePlaces places{rank.tensor(Shape{count}, rows), rank.tensor(Shape{count}, begins),
                                           rank.tensor(Shape{count}, positions)};
      const Tensor entries = rank.poisoned({count, d}, DType::f32);
      kernels::make_entries_in_step(rank.stream, entries, tails,
                                    {kv.reshape({kLength, wd}).narrow(0, past, count),
                                     gate.reshape({kLength, wd}).narrow(0, past, count), bias, overlap},
                                    places);
      kernels::append_entries(rank.stream, cache, entries, places, m);
      past += count;
    }
    ASSERT_EQ(past, kLength);
    const auto found = values(cache.narrow(0, kRow, 1));
    for (int64_t i = 0; i < kLength / m * d; ++i)
      EXPECT_EQ(found[static_cast<size_t>(i)], whole[static_cast<size_t>(i)]) << i;
  }
}

TEST(CompressedAttention, RefusesShapesThatDoNotFit) {
  Rank rank;
  const Case in(rank, kSizes[0]);
  Tape tape(rank.stream, Tape::Mode::off);
  const auto entries = [&](const Tensor& kv, const Tensor& gate, const Tensor& bias) {
    return message_of<ShapeError>(
        [&] { ops::make_entries(tape, tape.constant(kv), tape.constant(gate), tape.constant(bias), true, in.places); });
  };
  EXPECT_THAT(entries(in.kv, in.keys, in.bias), ::testing::HasSubstr("kv and gate"));
  EXPECT_THAT(entries(in.keys, in.keys, in.bias), ::testing::HasSubstr("5 channels are not two halves"));
  EXPECT_THAT(entries(in.kv, in.gate, in.sinks), ::testing::HasSubstr("bias must be"));
  EXPECT_THAT(entries(in.kv, in.gate, rank.normal({5, 10}, DType::f64, "b")), ::testing::HasSubstr("entries of 5"));
  const auto attention = [&](const Tensor& keys, const Tensor& sinks, const Tensor& of) {
    return message_of<ShapeError>([&] {
      ops::compressed_attention(tape, tape.constant(in.q), tape.constant(keys), tape.constant(sinks), tape.constant(of),
                                {}, in.places, in.args());
    });
  };
  const Tensor some = rank.normal({kRows, 12, kChannels}, DType::f64, "entries");
  EXPECT_THAT(attention(in.sinks, in.sinks, some), ::testing::HasSubstr("keys must be"));
  EXPECT_THAT(attention(in.keys, in.keys, some), ::testing::HasSubstr("sinks must be"));
  EXPECT_THAT(attention(in.keys, in.sinks, in.q), ::testing::HasSubstr("entries must be"));
}

}  // namespace
}  // namespace witan
