#include "witan/kernels/moe/selection.h"

#include <numeric>
#include <optional>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/moe/cpu/router_scores.h"
#include "witan/kernels/pointwise/cpu/dropout_mask.h"

namespace witan::kernels::cpu {
namespace {

// Draws the keys of RandomKeys.
class DrawnKeys {
 public:
  explicit DrawnKeys(const RandomKeys& random)
      : random_(random), words_(random.ids.defined() ? Philox(0, random.where.site) : words_of(random.where)) {}

  // Sets keys[E] of token t, the largest K of which will be chosen.
  template <class A>
  void draw(A* keys, int64_t t, int64_t E, int64_t K) const {
    const int64_t token = random_.ids.defined() ? random_.ids.data<int32_t>()[t] : random_.where.part.element(t);
    const auto first = static_cast<uint64_t>(token) * static_cast<uint64_t>(1 + (E + 3) / 4);
    const bool skewed = static_cast<double>(words_.block(first)[0]) < random_.skew * 0x1p32;
    const int64_t hot = random_.hot > 0 ? random_.hot : K;
    const auto exponent = static_cast<int64_t>(random_.exponent * 0x1p16);
    std::array<uint32_t, 4> words{};
    for (int64_t e = 0; e < E; ++e) {
      if (e % 4 == 0) words = words_.block(first + 1 + static_cast<uint64_t>(e / 4));
      const uint32_t word = words[static_cast<size_t>(e % 4)] >> 8;
      keys[e] = skewed && e < hot ? A(0x1p25) : exponent > 0 ? A(arrival_key(word, e, exponent)) : A(word);
    }
  }

 private:
  const RandomKeys& random_;
  Philox words_;
};

// Sets the keys outside the best groups to -inf.
template <class A>
void limit_to_groups(std::vector<A>& keys, const Selection& selection) {
  const auto E = static_cast<int64_t>(keys.size()), size = E / selection.groups;
  std::vector<int32_t> best(static_cast<size_t>(std::max(selection.group_score_topk, selection.group_topk)));
  std::vector<A> sums(static_cast<size_t>(selection.groups));
  for (int64_t g = 0; g < selection.groups; ++g) {
    const A* group = keys.data() + g * size;
    choose(group, size, best.data(), selection.group_score_topk);
    for (int64_t k = 0; k < selection.group_score_topk; ++k)
      sums[static_cast<size_t>(g)] += group[best[static_cast<size_t>(k)]];
  }
  choose(sums.data(), selection.groups, best.data(), selection.group_topk);
  for (int64_t e = 0; e < E; ++e) {
    const auto end = best.begin() + selection.group_topk;
    if (std::find(best.begin(), end, static_cast<int32_t>(e / size)) == end)
      keys[static_cast<size_t>(e)] = -std::numeric_limits<A>::infinity();
  }
}

// Adds the selection's bias to keys[E].
template <class A>
void add_bias(std::vector<A>& keys, const Tensor& bias) {
  for (size_t e = 0; e < keys.size(); ++e)
    keys[e] += bias.dtype() == DType::f32 ? A(bias.data<float>()[e]) : A(bias.data<double>()[e]);
}

// Sets keys[E] of token t, before the limit to the best groups.
template <class A>
void set_keys(std::vector<A>& keys, const RouterOutputs& out, const A* logits, const Selection& selection, int64_t t) {
  const auto E = static_cast<int64_t>(keys.size());
  const A* p = out.probs.data<A>() + t * E;
  dispatch_scores(selection.keys, [&]<class Score>() {
    for (int64_t e = 0; e < E; ++e) keys[static_cast<size_t>(e)] = Score::key(p[e], logits[e]);
  });
  if (selection.bias.defined()) add_bias(keys, selection.bias);
}

}  // namespace

void select_experts(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection) {
  const int64_t E = logits.size(1), K = out.ids.size(1);
  std::optional<DrawnKeys> drawn;
  if (selection.random.on()) drawn.emplace(selection.random);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      for_rows(stream, logits, [&](int64_t t) {
        const A *in = logits.data<A>() + t * E, *p = out.probs.data<A>() + t * E;
        int32_t* ids = out.ids.data<int32_t>() + t * K;
        if (is_padding(out.sequence_ids, t)) return choose_none(ids, out.weights.data<A>() + t * K, K);
        std::vector<A> keys(static_cast<size_t>(E));
        if (drawn)
          drawn->draw(keys.data(), t, E, K);
        else
          set_keys(keys, out, in, selection, t);
        if (selection.groups > 1) limit_to_groups(keys, selection);
        choose(keys.data(), E, ids, K);
        dispatch_scores(scoring.scores,
                        [&]<class Score>() { weigh<Score>(out.weights.data<A>() + t * K, p, in, ids, K, scoring); });
      });
  });
}

void look_up_experts(Stream& stream, const Tensor& out, const Tensor& table, const Tensor& tokens) {
  const int64_t K = out.size(1);
  for_rows(stream, out, [&](int64_t t) {
    const float* const from = table.data<float>() + tokens.data<int32_t>()[t] * K;
    for (int64_t k = 0; k < K; ++k) out.data<int32_t>()[t * K + k] = static_cast<int32_t>(from[k]);
  });
}

void weigh_chosen(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const int64_t E = logits.size(1), K = out.ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      dispatch_scores(scoring.scores, [&]<class Score>() {
        for_rows(stream, logits, [&](int64_t t) {
          int32_t* ids = out.ids.data<int32_t>() + t * K;
          A* w = out.weights.data<A>() + t * K;
          if (is_padding(out.sequence_ids, t)) return choose_none(ids, w, K);
          weigh<Score>(w, out.probs.data<A>() + t * E, logits.data<A>() + t * E, ids, K, scoring);
        });
      });
  });
}

void sinkhorn_bias(Stream& stream, const Tensor& bias, const Tensor& logits, int64_t iterations, double tolerance,
                   const Tensor& sequence_ids) {
  const int64_t T = logits.size(0), E = logits.size(1);
  int64_t tokens = 0;
  for (int64_t t = 0; t < T; ++t) tokens += !is_padding(sequence_ids, t);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      std::vector<double> v(static_cast<size_t>(E), 1);
      std::vector<A> shares(static_cast<size_t>(T * E));  // u c of each token in the current iteration; 0 for padding
      double change = std::numeric_limits<double>::infinity();
      for (int64_t i = 0; tokens > 0 && i < iterations && change > tolerance; ++i) {
        for_rows(stream, logits, [&](int64_t t) {
          if (is_padding(sequence_ids, t)) return;
          const A* in = logits.data<A>() + t * E;
          A *share = shares.data() + t * E, sum = 0;
          const A most = *std::max_element(in, in + E);
          for (int64_t e = 0; e < E; ++e) sum += A(v[static_cast<size_t>(e)]) * (share[e] = std::exp(in[e] - most));
          const A u = 1 / (A(tokens) * (sum + A(kSinkhornEpsilon)));
          for (int64_t e = 0; e < E; ++e) share[e] *= u;
        });
        std::vector<double> sums(static_cast<size_t>(E));
        for (int64_t at = 0; at < T * E; ++at)
          sums[static_cast<size_t>(at % E)] += static_cast<double>(shares[static_cast<size_t>(at)]);
        change = 0;
        for (size_t e = 0; e < v.size(); ++e) {
          const double next = 1 / (static_cast<double>(E) * (sums[e] + kSinkhornEpsilon));
          change += std::abs(next - v[e]) / static_cast<double>(E);
          v[e] = next;
        }
      }
      std::ranges::transform(v, bias.data<A>(), [](double factor) { return static_cast<A>(std::log(factor)); });
    }
  });
}

}  // namespace witan::kernels::cpu
