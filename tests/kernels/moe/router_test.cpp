#include <numeric>

#include "support/rank.h"
#include "support/routing.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/selection.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::close;
using testing::poisoned_outputs;
using testing::Rank;
using testing::values;

// The definitions in kernels/moe/router.h, computed literally in float64.
struct Reference {
  std::vector<int32_t> ids;
  std::vector<int64_t> counts;
  std::vector<double> weights, probs, lse;
  double balance = 0, z = 0, entropy = 0;

  Reference(const std::vector<double>& logits, int64_t T, int64_t E, int64_t K, Scores scores)
      : counts(static_cast<size_t>(E)) {
    for (int64_t t = 0; t < T; ++t) route({logits.begin() + t * E, logits.begin() + (t + 1) * E}, K, scores);
    const auto tokens = static_cast<double>(T);
    for (int64_t e = 0; e < E; ++e) {
      double mass = 0;
      for (int64_t t = 0; t < T; ++t) mass += probs[static_cast<size_t>(t * E + e)];
      balance += static_cast<double>(E) * mass * static_cast<double>(counts[static_cast<size_t>(e)]) /
                 (tokens * tokens * static_cast<double>(K));
    }
    for (const double value : lse) z += value * value / tokens;
    for (const double p : probs) entropy -= p > 0 ? p * std::log(p) / tokens : 0;
  }

 private:
  void route(const std::vector<double>& row, int64_t K, Scores scores) {
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return row[size_t(a)] > row[size_t(b)]; });
    double all = 0, chosen = 0;
    for (const double logit : row) all += std::exp(logit);
    for (int64_t k = 0; k < K; ++k) chosen += std::exp(row[size_t(order[size_t(k)])]);
    for (const double logit : row) probs.push_back(std::exp(logit) / all);
    for (int64_t k = 0; k < K; ++k) {
      const auto e = static_cast<size_t>(order[size_t(k)]);
      ids.push_back(order[size_t(k)]);
      weights.push_back(std::exp(row[e]) / (scores == Scores::softmax ? all : chosen));
      ++counts[e];
    }
    lse.push_back(std::log(all));
  }
};

void expect_like_reference(Rank& rank, const Tensor& logits, int64_t K, Scores scores) {
  const int64_t T = logits.size(0), E = logits.size(1);
  SCOPED_TRACE(
      cat(logits.dtype(), " T=", T, " E=", E, " K=", K, scores == Scores::softmax ? " softmax" : " softmax of chosen"));
  const auto out = poisoned_outputs(rank, T, E, K, logits.dtype());
  kernels::router_forward(rank.stream, out, logits, scores);
  const Reference reference(values(logits), T, E, K, scores);
  const double tolerance = logits.dtype() == DType::f64 ? 1e-13 : 1e-5;
  EXPECT_EQ(out.ids.to_vector<int32_t>(), reference.ids);
  EXPECT_EQ(out.counts.to_vector<int64_t>(), reference.counts);
  EXPECT_TRUE(close(values(out.weights), reference.weights, tolerance, tolerance));
  EXPECT_TRUE(close(values(out.probs), reference.probs, tolerance, tolerance));
  EXPECT_TRUE(close(values(out.lse), reference.lse, tolerance, tolerance));
  EXPECT_TRUE(close(values(out.balance), {reference.balance}, tolerance, tolerance));
  EXPECT_TRUE(close(values(out.z), {reference.z}, tolerance, tolerance));
  EXPECT_TRUE(close(values(out.entropy), {reference.entropy}, tolerance, tolerance));
}

TEST(Router, FollowsItsDefinition) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{
               {1, 1, 1}, {5, 1, 1}, {1, 8, 2}, {7, 5, 5}, {33, 8, 2}, {301, 64, 1}, {129, 7, 3}})
        expect_like_reference(rank, rank.normal({T, E}, dtype, "logits", 3), K, scores);
}

// The weights of given experts follow the definition, and equal those of the router's own choice to the bit.
TEST(WeighChosen, WeighsAnyChoiceAsTheRouterWeighsItsOwn) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid})
      for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{0, 4, 2}, {1, 1, 1}, {7, 5, 5}, {33, 8, 2}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K, " scores ", static_cast<int>(scores)));
        const Tensor logits = rank.normal({T, E}, dtype, "logits", 3);
        const auto out = poisoned_outputs(rank, T, E, K, dtype);
        kernels::router_forward(rank.stream, out, logits, scores);
        const std::vector<double> own = values(out.weights);
        rank.stream.copy(out.weights, rank.poisoned({T, K}, dtype));
        kernels::weigh_chosen(rank.stream, out, logits, scores);
        EXPECT_EQ(values(out.weights), own);

        // Other experts: the next of each, which also differ from each other.
        std::vector<double> expected;
        const std::vector<double> rows = values(logits);
        for (int64_t t = 0; t < T; ++t) {
          double all = 0, chosen = 0;
          std::vector<double> each;
          const auto score = [&](int64_t e) {
            const double logit = rows[static_cast<size_t>(t * E + e)];
            return scores == Scores::sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit);
          };
          for (int64_t e = 0; e < E; ++e) all += score(e);
          for (int64_t k = 0; k < K; ++k) {
            int32_t& id = out.ids.data<int32_t>()[t * K + k];
            id = static_cast<int32_t>((id + 1) % E);
            each.push_back(score(id));
            chosen += each.back();
          }
          const double whole = scores == Scores::softmax ? all : scores == Scores::sigmoid && K == 1 ? 1 : chosen;
          for (const double weight : each) expected.push_back(weight / whole);
        }
        kernels::weigh_chosen(rank.stream, out, logits, scores);
        EXPECT_TRUE(close(values(out.weights), expected, 1e-12, dtype == DType::f64 ? 1e-13 : 1e-5));
      }
}

TEST(Router, TheLowerOfEqualExpertsWins) {
  Rank rank;
  const Tensor logits = rank.tensor<float>({4, 4}, {0, 0, 0, 0, /**/ 1, 2, 2, 1, /**/ -1, -1, 3, -1, /**/ 5, 4, 5, 4});
  expect_like_reference(rank, logits, 3, Scores::softmax_of_chosen);
  const auto out = poisoned_outputs(rank, 4, 4, 3, DType::f32);
  kernels::router_forward(rank.stream, out, logits, Scores::softmax_of_chosen);
  EXPECT_EQ(out.ids.to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 2, 1}));
}

TEST(Router, LargeLogitsDoNotOverflow) {
  Rank rank;
  const auto out = poisoned_outputs(rank, 1, 3, 2, DType::f32);
  kernels::router_forward(rank.stream, out, rank.tensor<float>({1, 3}, {1e4F, -1e4F, 1e4F}), Scores::softmax_of_chosen);
  EXPECT_EQ(values(out.weights), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(values(out.probs), (std::vector<double>{0.5, 0, 0.5}));
  EXPECT_TRUE(close(values(out.lse), {1e4 + std::log(2)}, 1e-3, 0));
  EXPECT_TRUE(close(values(out.entropy), {std::log(2)}, 1e-3, 0));
}

TEST(Router, BalanceLossIsOneIfEvenAndLargestForOneExpert) {
  Rank rank;
  const int64_t T = 6, E = 3;
  std::vector<double> hot, even;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t e = 0; e < E; ++e) {
      hot.push_back(e == 1 ? 50 : 0);
      even.push_back(e == t % E ? 50 : 0);
    }
  const auto out = poisoned_outputs(rank, T, E, 1, DType::f64);
  kernels::router_forward(rank.stream, out, rank.tensor<double>({T, E}, hot), Scores::softmax);
  EXPECT_EQ(out.counts.to_vector<int64_t>(), (std::vector<int64_t>{0, T, 0}));
  EXPECT_NEAR(out.balance.data<double>()[0], static_cast<double>(E), 1e-12);
  kernels::router_forward(rank.stream, out, rank.tensor<double>({T, E}, even), Scores::softmax);
  EXPECT_EQ(out.counts.to_vector<int64_t>(), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_NEAR(out.balance.data<double>()[0], 1, 1e-12);
}

TEST(Router, LossesAndCountsAreZeroWithoutTokens) {
  Rank rank;
  const auto out = poisoned_outputs(rank, 0, 4, 2, DType::f32);
  kernels::router_forward(rank.stream, out, rank.stream.empty({0, 4}, DType::f32), Scores::softmax_of_chosen);
  EXPECT_EQ(out.counts.to_vector<int64_t>(), std::vector<int64_t>(4, 0));
  EXPECT_EQ(values(out.balance), std::vector<double>{0});
  EXPECT_EQ(values(out.z), std::vector<double>{0});
  EXPECT_EQ(values(out.entropy), std::vector<double>{0});
  kernels::router_backward(rank.stream, rank.stream.empty({0, 4}, DType::f32), {out.weights, out.balance, out.z}, out,
                           Scores::softmax_of_chosen);
}

struct Results {
  std::vector<double> weights, balance, z, dlogits;
  bool operator==(const Results&) const = default;
};
Results results_of(int threads, DType dtype, Scores scores) {
  Rank rank(threads);
  const int64_t T = 5003, E = 16, K = 4;
  Tensor logits = rank.normal({T, E}, DType::f32, "logits", 2);  // the same numbers in both dtypes
  if (dtype == DType::f64) logits = rank.tensor<double>({T, E}, values(logits));
  const auto out = poisoned_outputs(rank, T, E, K, dtype);
  kernels::router_forward(rank.stream, out, logits, scores);
  const Tensor dlogits = rank.poisoned({T, E}, dtype);
  kernels::router_backward(
      rank.stream, dlogits,
      {rank.normal({T, K}, dtype, "dweights"), rank.normal({1}, dtype, "dbalance"), rank.normal({1}, dtype, "dz")}, out,
      scores);
  return {values(out.weights), values(out.balance), values(out.z), values(dlogits)};
}

TEST(Router, EntropyFollowsItsDefinition) {
  Rank rank;
  const auto entropy = [&](const std::vector<double>& logits) {
    const auto out = poisoned_outputs(rank, 1, 4, 2, DType::f64);
    kernels::router_forward(rank.stream, out, rank.tensor<double>({1, 4}, logits), Scores::softmax);
    return out.entropy.data<double>()[0];
  };
  EXPECT_NEAR(entropy({3, 3, 3, 3}), std::log(4), 1e-15);
  EXPECT_EQ(entropy({0, -1e4, -INFINITY, -2e4}), 0) << "an expert that cannot be chosen";
  EXPECT_NEAR(entropy({std::log(0.5), std::log(0.25), std::log(0.125), std::log(0.125)}), 1.75 * std::log(2), 1e-15);
}

// Three parts of a micro-batch, one of them without tokens.
TEST(Router, PartsCombineToTheLossesOfTheWhole) {
  Rank rank;
  const int64_t T = 21, E = 5, K = 2;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2);
  const auto whole = poisoned_outputs(rank, T, E, K, DType::f64);
  kernels::router_forward(rank.stream, whole, logits, Scores::softmax_of_chosen);
  const Tensor total = rank.stream.zeros({E + kernels::kTokenSums}, DType::f64),
               sums = rank.poisoned({E + kernels::kTokenSums}, DType::f64);
  for (const auto& [begin, tokens] : {std::pair{0, 8}, std::pair{8, 0}, std::pair{8, 13}}) {
    const auto part = poisoned_outputs(rank, tokens, E, K, DType::f64);
    kernels::router_forward(rank.stream, part, logits.narrow(0, begin, tokens), Scores::softmax_of_chosen);
    kernels::router_sums(rank.stream, sums, part);
    kernels::add(rank.stream, total, total, sums);
  }
  const auto joined = poisoned_outputs(rank, 0, E, K, DType::f64);
  kernels::router_losses(rank.stream, joined, {total, whole.counts, T, K});
  EXPECT_TRUE(close(joined.balance, whole.balance, 0, 1e-14));
  EXPECT_TRUE(close(joined.z, whole.z, 0, 1e-14));
  EXPECT_TRUE(close(joined.entropy, whole.entropy, 0, 1e-14));
}

// Tokens [begin, begin + length) of each of B sequences, one sequence after the other.
Tensor of_each_sequence(Rank& rank, const Tensor& x, int64_t B, int64_t begin, int64_t length) {
  const int64_t E = x.size(1), whole = x.size(0) / B;
  Tensor part = rank.stream.empty({B * length, E}, x.dtype());
  for (int64_t b = 0; b < B; ++b)
    rank.stream.copy(part.narrow(0, b * length, length), x.narrow(0, b * whole + begin, length));
  return part;
}

// The balance loss is the mean of the sequences' own losses. Each of the parts holds tokens of every sequence.
void expect_balance_of_sequences(const Tensor& logits, int64_t B, int64_t K, int parts, Scores scores, Rank& rank) {
  const int64_t T = logits.size(0), E = logits.size(1), length = T / B, own = length / parts;
  const DType A = logits.dtype();
  SCOPED_TRACE(cat(A, " T=", T, " E=", E, " K=", K, " B=", B, " parts ", parts));
  const double tolerance = A == DType::f64 ? 1e-13 : 2e-5;
  const Tensor dbalance = rank.normal({1}, A, "dbalance");
  double balance = 0;
  std::vector<double> expected;  // dlogits
  const auto per_sequence = [&](double value) { return value / static_cast<double>(B); };
  for (int64_t b = 0; b < B; ++b) {
    const Tensor sequence = logits.narrow(0, b * length, length);
    balance += per_sequence(Reference(values(sequence), length, E, K, scores).balance);
    const auto out = poisoned_outputs(rank, length, E, K, A);
    kernels::router_forward(rank.stream, out, sequence, scores);
    const Tensor dlogits = rank.poisoned({length, E}, A);
    kernels::router_backward(rank.stream, dlogits, {{}, dbalance, {}}, out, scores);
    for (const double value : values(dlogits)) expected.push_back(per_sequence(value));
  }
  const auto whole = poisoned_outputs(rank, T, E, K, A);
  kernels::router_forward(rank.stream, whole, logits, scores);
  const Tensor counts = rank.stream.empty({B, E}, DType::i64),
               total = rank.stream.zeros({B * E + kernels::kTokenSums}, A);
  kernels::count_assignments(rank.stream, counts, whole.ids);
  std::vector<double> found(expected.size());
  for (int part = 0; part < parts; ++part) {
    auto out = poisoned_outputs(rank, B * own, E, K, A);
    kernels::router_forward(rank.stream, out, of_each_sequence(rank, logits, B, part * own, own), scores);
    const Tensor sums = rank.poisoned({B * E + kernels::kTokenSums}, A), dlogits = rank.poisoned({B * own, E}, A);
    kernels::router_sums(rank.stream, sums, out);
    kernels::add(rank.stream, total, total, sums);
    out.counts = counts;
    kernels::router_backward(rank.stream, dlogits, {{}, dbalance, {}}, out, scores, parts);
    const auto of_part = values(dlogits);
    for (int64_t b = 0; b < B; ++b)
      std::copy_n(of_part.begin() + b * own * E, own * E, found.begin() + (b * length + part * own) * E);
  }
  const auto all = poisoned_outputs(rank, 0, E, K, A);
  kernels::router_losses(rank.stream, all, {total, counts, T, K});
  EXPECT_TRUE(close(values(all.balance), {balance}, 0, tolerance));
  EXPECT_TRUE(close(all.z, whole.z, 0, tolerance));
  EXPECT_TRUE(close(all.entropy, whole.entropy, tolerance, tolerance));
  EXPECT_TRUE(close(found, expected, tolerance, tolerance));
}

TEST(Router, SequencesCanBeBalancedSeparately) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
      for (const auto& [T, E, K, B, parts] : std::vector<std::array<int64_t, 5>>{{24, 5, 2, 3, 1},
                                                                                 {24, 5, 2, 3, 4},
                                                                                 {66, 8, 3, 2, 3},
                                                                                 {7, 4, 2, 7, 1},
                                                                                 {12, 1, 1, 2, 2},
                                                                                 {6, 6, 2, 1, 2}})
        expect_balance_of_sequences(rank.normal({T, E}, dtype, "logits", 2), B, K, static_cast<int>(parts), scores,
                                    rank);
}

TEST(Router, SequencesWithoutTokensHaveNoLoss) {
  Rank rank;
  auto out = poisoned_outputs(rank, 0, 4, 2, DType::f64);
  kernels::router_forward(rank.stream, out, rank.stream.empty({0, 4}, DType::f64), Scores::softmax_of_chosen);
  const Tensor sums = rank.poisoned({14}, DType::f64), counts = rank.stream.empty({3, 4}, DType::i64);
  std::ranges::fill(counts.span<int64_t>(), -7);
  kernels::router_sums(rank.stream, sums, out);
  kernels::count_assignments(rank.stream, counts, out.ids);
  EXPECT_EQ(values(sums), std::vector<double>(14, 0.0));
  EXPECT_EQ(counts.to_vector<int64_t>(), std::vector<int64_t>(12, 0));
  kernels::router_losses(rank.stream, out, {sums, counts, 0, 2});
  EXPECT_EQ(values(out.balance), std::vector<double>{0});
  out.counts = counts;
  kernels::router_backward(rank.stream, rank.stream.empty({0, 4}, DType::f64), {{}, out.balance, {}}, out,
                           Scores::softmax_of_chosen);
}

// sequence_ids [T] in which the last rows of each of B sequences are padding, in some sequences all rows.
std::vector<int32_t> padded_ids(int64_t T, int64_t B) {
  std::vector<int32_t> ids;
  const int64_t length = T / B;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t b = t / length, real = b % 3 == 2 ? 0 : length - 1 - b % length;
    ids.push_back(t % length < real ? static_cast<int32_t>(t % 2) : -1);
  }
  return ids;
}

// The rows of x [T, N] that are not padding, one after the other.
template <class V>
std::vector<V> real_rows(const std::vector<V>& x, const std::vector<int32_t>& ids) {
  const size_t width = x.size() / ids.size();
  std::vector<V> rows;
  for (size_t t = 0; t < ids.size(); ++t)
    if (ids[t] >= 0) rows.insert(rows.end(), x.begin() + long(t * width), x.begin() + long((t + 1) * width));
  return rows;
}

// The mean of the balance losses of the sequences' unpadded tokens; a sequence without tokens has 0.
double padded_balance(const std::vector<double>& logits, const std::vector<int32_t>& ids, int64_t B, int64_t K,
                      Scores scores) {
  const auto T = static_cast<int64_t>(ids.size()), E = static_cast<int64_t>(logits.size()) / T, length = T / B;
  double sum = 0;
  for (int64_t b = 0; b < B; ++b) {
    const std::vector<int32_t> of(ids.begin() + b * length, ids.begin() + (b + 1) * length);
    const auto rows = real_rows<double>({logits.begin() + b * length * E, logits.begin() + (b + 1) * length * E}, of);
    if (!rows.empty()) sum += Reference(rows, static_cast<int64_t>(rows.size()) / E, E, K, scores).balance;
  }
  return sum / static_cast<double>(B);
}

struct Padded {
  kernels::RouterOutputs out;
  Tensor counts;  // [B, E]
};

// Routes T rows of B sequences as route() does for one part.
Padded route_padded(Rank& rank, const Tensor& logits, const std::vector<int32_t>& ids, int64_t B, int64_t K,
                    Scores scores) {
  const int64_t T = logits.size(0), E = logits.size(1);
  const DType A = logits.dtype();
  Padded padded{poisoned_outputs(rank, T, E, K, A), rank.stream.empty({B, E}, DType::i64)};
  kernels::RouterOutputs& out = padded.out;
  out.sequence_ids = rank.tensor<int32_t>({T}, ids);
  kernels::router_forward(rank.stream, out, logits, scores);
  const Tensor sums = rank.poisoned({B * E + kernels::kTokenSums}, A);
  kernels::router_sums(rank.stream, sums, out);
  kernels::count_assignments(rank.stream, padded.counts, out.ids);
  out.tokens = rank.stream.empty({1}, DType::i64);
  kernels::count_tokens(rank.stream, out.tokens, out.counts, K);
  kernels::router_losses(rank.stream, out, {sums, padded.counts, T, K});
  return padded;
}

TEST(Router, IgnoresPadding) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
      for (const auto& [T, E, K, B] :
           std::vector<std::array<int64_t, 4>>{{24, 5, 2, 3}, {24, 8, 3, 1}, {35, 4, 1, 5}, {3, 3, 3, 3}}) {
        SCOPED_TRACE(cat(dtype, " T=", T, " E=", E, " K=", K, " B=", B));
        const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-5;
        const Tensor logits = rank.normal({T, E}, dtype, "logits", 3);
        const std::vector<int32_t> ids = padded_ids(T, B);
        const auto [out, counts] = route_padded(rank, logits, ids, B, K, scores);
        const auto rows = real_rows(values(logits), ids);
        const Reference alone(rows, static_cast<int64_t>(rows.size()) / E, E, K, scores);
        EXPECT_EQ(out.tokens.to_vector<int64_t>()[0], static_cast<int64_t>(alone.lse.size()));
        EXPECT_EQ(real_rows(out.ids.to_vector<int32_t>(), ids), alone.ids);
        EXPECT_EQ(out.counts.to_vector<int64_t>(), alone.counts);
        EXPECT_TRUE(close(real_rows(values(out.weights), ids), alone.weights, tolerance, tolerance));
        EXPECT_TRUE(close(values(out.z), {alone.z}, tolerance, tolerance));
        EXPECT_TRUE(close(values(out.entropy), {alone.entropy}, tolerance, tolerance));
        EXPECT_TRUE(
            close(values(out.balance), {padded_balance(values(logits), ids, B, K, scores)}, tolerance, tolerance));
        for (int64_t t = 0; t < T; ++t) {
          if (ids[static_cast<size_t>(t)] >= 0) continue;
          for (int64_t k = 0; k < K; ++k) EXPECT_EQ(out.ids.data<int32_t>()[t * K + k], -1);
          EXPECT_EQ(values(out.weights.narrow(0, t, 1)), std::vector<double>(static_cast<size_t>(K)));
        }
      }
}

// Tests every score; other tests compare their gradients without padding with finite differences.
TEST(RouterBackward, PaddingHasNoGradientAndChangesNoOther) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid, Scores::sqrtsoftplus}) {
    const int64_t T = 24, E = 6, K = 2;
    const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2), dw = rank.normal({T, K}, DType::f64, "dw"),
                 one = rank.normal({1}, DType::f64, "one"), dprobs = rank.normal({E}, DType::f64, "dprobs");
    const std::vector<int32_t> ids = padded_ids(T, 1);
    const auto backward = [&](const kernels::RouterOutputs& out, const Tensor& of, const Tensor& dweights) {
      kernels::RouterOutputs saved = out;
      if (kernels::scores_each_alone(scores)) saved.logits = of, saved.probs = {};
      const Tensor dlogits = rank.poisoned(of.shape(), DType::f64);
      kernels::router_backward(rank.stream, dlogits, {dweights, one, one, dprobs}, saved, scores);
      return values(dlogits);
    };
    const auto rows = real_rows(values(logits), ids);
    const auto n = static_cast<int64_t>(rows.size()) / E;
    const Tensor alone = rank.tensor<double>({n, E}, rows);
    const auto of_alone = poisoned_outputs(rank, n, E, K, DType::f64);
    kernels::router_forward(rank.stream, of_alone, alone, scores);
    const auto expected = backward(of_alone, alone, rank.tensor<double>({n, K}, real_rows(values(dw), ids)));
    const auto found = backward(route_padded(rank, logits, ids, 1, K, scores).out, logits, dw);
    EXPECT_TRUE(close(real_rows(found, ids), expected, 1e-14, 1e-13));
    for (size_t i = 0; i < found.size(); ++i) {
      if (ids[i / static_cast<size_t>(E)] < 0) {
        EXPECT_EQ(found[i], 0);
      }
    }
  }
}

TEST(Router, PaddingAloneHasNoLossAndNoGradient) {
  Rank rank;
  const Tensor logits = rank.normal({6, 4}, DType::f64, "logits"), one = rank.normal({1}, DType::f64, "one");
  auto [out, counts] = route_padded(rank, logits, std::vector<int32_t>(6, -1), 2, 2, Scores::softmax_of_chosen);
  EXPECT_EQ(out.counts.to_vector<int64_t>(), std::vector<int64_t>(4, 0));
  for (const Tensor& loss : {out.balance, out.z, out.entropy}) EXPECT_EQ(values(loss), std::vector<double>{0});
  out.counts = counts;
  const Tensor dlogits = rank.poisoned({6, 4}, DType::f64);
  kernels::router_backward(rank.stream, dlogits, {rank.normal({6, 2}, DType::f64, "dw"), one, one}, out,
                           Scores::softmax_of_chosen);
  EXPECT_EQ(values(dlogits), std::vector<double>(24, 0.0));
}

TEST(Router, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax})
    EXPECT_EQ(results_of(1, DType::f32, scores), results_of(3, DType::f32, scores));
}

TEST(Router, Float32FollowsFloat64) {
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax}) {
    const Results narrow = results_of(2, DType::f32, scores), wide = results_of(2, DType::f64, scores);
    EXPECT_TRUE(close(narrow.weights, wide.weights, 1e-6, 1e-5));
    EXPECT_TRUE(close(narrow.balance, wide.balance, 0, 1e-6));
    EXPECT_TRUE(close(narrow.z, wide.z, 0, 1e-6));
    EXPECT_TRUE(close(narrow.dlogits, wide.dlogits, 1e-5, 1e-5));
  }
}

TEST(RouterBackward, UndefinedGradientsCountAsZero) {
  Rank rank;
  const Tensor logits = rank.normal({9, 5}, DType::f64, "logits");
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax}) {
    const auto out = poisoned_outputs(rank, 9, 5, 2, DType::f64);
    kernels::router_forward(rank.stream, out, logits, scores);
    const Tensor dw = rank.normal({9, 2}, DType::f64, "dw"), one = rank.normal({1}, DType::f64, "one"),
                 no_rows = rank.stream.zeros({9, 2}, DType::f64), zero = rank.stream.zeros({1}, DType::f64);
    const auto backward = [&](const kernels::RouterGradients& gradients) {
      const Tensor dlogits = rank.poisoned({9, 5}, DType::f64);
      kernels::router_backward(rank.stream, dlogits, gradients, out, scores);
      return values(dlogits);
    };
    EXPECT_EQ(backward({dw, {}, {}}), backward({dw, zero, zero}));
    EXPECT_EQ(backward({{}, one, {}}), backward({no_rows, one, zero}));
    EXPECT_EQ(backward({{}, {}, one}), backward({no_rows, zero, one}));
    EXPECT_EQ(backward({{}, {}, {}}), std::vector<double>(45, 0.0));
  }
}

}  // namespace
}  // namespace witan
