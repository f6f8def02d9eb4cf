// A batch of tokens for the kernels of kernels/objective, and all of their results, for comparing dtypes and twins.
#pragma once

#include <map>
#include <string>

#include "support/rank.h"
#include "witan/kernels/objective/objective.h"

namespace witan::testing {

// Rows of 12 tokens with sequences of 1 to 5 and padding at the end; every fourth token does not count, and has NaN as
// its values.
struct ObjectiveCase {
  ObjectiveCase(Rank& rank, DType accumulator, int64_t wanted)
      : tokens(wanted / 12 > 0 ? wanted / 12 * 12 : wanted),
        rows(std::max<int64_t>(tokens / 12, 1)),
        losses(rank.normal({tokens}, accumulator, "losses")),
        slopes(rank.normal({tokens}, accumulator, "slopes")),
        others(rank.normal({tokens}, DType::f32, "others")),
        rollout(rank.normal({tokens}, DType::f32, "rollout")),
        advantages(rank.normal({tokens}, DType::f32, "advantages")),
        mask(rank.stream.empty({tokens}, DType::f32)),
        ids(rank.stream.empty({tokens}, DType::i32)),
        number(rank.tensor<double>({1}, {7})) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t place = t % 12, size = 1 + t / 12 % 5;
      ids.data<int32_t>()[t] = place >= 10 ? -1 : static_cast<int32_t>(place / size);
      const bool counts = place < 10 && t % 4 != 3;
      mask.data<float>()[t] = counts ? 1.0f : 0.0f;
      if (counts) continue;
      dispatch_floating(accumulator, [&]<class A>() { losses.data<A>()[t] = A(std::nanf("")); });
      for (const Tensor& column : {others, rollout, advantages}) column.data<float>()[t] = std::nanf("");
    }
  }

  // Every result by its name, on the stream of `place`, which makes tensors (poisoned) and whose inputs these are.
  template <class Place>
  std::map<std::string, Tensor> run(Stream& stream, Place& place) const {
    const auto out = [&](const Shape& shape) { return place.poisoned(shape, losses.dtype()); };
    const kernels::RowSequences sequences{ids, rows, 12};
    std::map<std::string, Tensor> all;
    const Tensor ratios = all["log_ratios"] = out({tokens});
    kernels::log_ratios(stream, ratios, losses, others, mask);
    const Tensor sums = all["sums"] = place.poisoned({sequences.count()}, DType::f64);
    const Tensor counts = all["counts"] = place.poisoned({sequences.count()}, DType::f64);
    kernels::sequence_sums(stream, sums, ratios, mask, sequences);
    kernels::sequence_sums(stream, counts, {}, mask, sequences);
    const Tensor weights = all["weights"] = out({tokens});
    kernels::sequence_weights(stream, weights, mask, number, counts, sequences, 0.5);
    for (const bool whole : {false, true}) {
      const std::string name = whole ? "policy of sequences" : "policy of tokens";
      const Tensor terms = all[name] = out({kernels::policy_term::count, tokens}),
                   own = all[name + ", slopes"] = out({tokens});
      kernels::policy_terms(
          stream, terms, own,
          {ratios, advantages, others, rollout, mask, whole ? sums : Tensor(), whole ? counts : Tensor()}, sequences,
          {0.2, 0.3, 1.5});
      const Tensor figures = all[name + ", sums"] = out({kernels::policy_term::count});
      kernels::weighted_sums(stream, figures, terms, weights);
    }
    const Tensor kl = all["kl"] = out({1, tokens}), kl_slopes = all["kl, slopes"] = out({tokens});
    kernels::kl_terms(stream, kl, kl_slopes, ratios, mask);
    const Tensor preferences = all["preferences"] = out({kernels::preference_term::count, tokens}),
                 by_pair = all["preferences, slopes"] = out({tokens});
    kernels::preference_terms(stream, preferences, by_pair, {losses, sums, counts, mask}, sequences, {0.3, 0.1});
    using Loss = kernels::PreferenceOptions::Loss;
    for (const auto& [name, loss] : {std::pair{"robust", Loss::robust}, {"hinge", Loss::hinge}, {"ipo", Loss::ipo}}) {
      const Tensor terms = all[name] = out({kernels::preference_term::count, tokens}),
                   own = all[cat(name, ", slopes")] = out({tokens});
      kernels::preference_terms(stream, terms, own, {losses, sums, counts, mask}, sequences,
                                {0.3, 0.2, loss, /*averages=*/loss != Loss::hinge, /*sft_weight=*/0.5});
    }
    const Tensor alone = all["log_ratios of one model"] = out({tokens});
    kernels::log_ratios(stream, alone, losses, {}, mask);
    const Tensor means = all["means"] = out({tokens}), products = all["products"] = out({tokens});
    kernels::sequence_means(stream, means, sums, counts, mask, sequences);
    kernels::scaled_products(stream, products, -2, {}, slopes, weights);
    return all;
  }

  int64_t tokens, rows;
  Tensor losses, slopes, others, rollout, advantages, mask, ids, number;
};

}  // namespace witan::testing
