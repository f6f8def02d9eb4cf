#include "witan/ops/objective/objective.h"

namespace witan::ops {
namespace {

Tensor sums_of(Stream& s, const Tensor& values, const ObjectiveTokens& tokens) {
  const Tensor sums = s.empty({tokens.sequences.count()}, DType::f64, MemoryTag::workspace);
  kernels::sequence_sums(s, sums, values, tokens.mask, tokens.sequences);
  if (tokens.context && tokens.context->size() > 1) tokens.context->all_reduce(s, sums);
  return sums;
}

Tensor log_ratios(Stream& s, const Var& losses, const Tensor& others, const Tensor& mask) {
  const Tensor ratios = s.empty_like(losses.value());
  kernels::log_ratios(s, ratios, losses.value(), others, mask);
  return ratios;
}

// The backward of a loss whose derivative by the log probability of a token is slopes[t] weights[t]; weights undefined:
// 1.
Tape::BackwardFn1 backward_of(Tape& tape, const Var& losses, const Tensor& slopes, const Tensor& weights) {
  return [losses = tape.slot(losses), slopes = tape.save(slopes),
          weights = weights.defined() ? tape.save(weights) : Saved(),
          weighted = weights.defined()](Backward& b, const Tensor& dloss) {
    const Tensor own = b.value(slopes), dlosses = b.stream().empty_like(own);
    kernels::scaled_products(b.stream(), dlosses, -1, dloss, own, weighted ? b.value(weights) : Tensor());
    b.add(losses, dlosses);
  };
}

// sums[k] = sum_t weights[t] terms[first + k, t], each [1].
std::vector<Tensor> sums_of_terms(Stream& s, const Tensor& terms, int64_t first, int64_t count, const Tensor& weights) {
  const Tensor sums = s.empty({count}, weights.dtype());
  kernels::weighted_sums(s, sums, terms.narrow(0, first, count), weights);
  std::vector<Tensor> each;
  for (int64_t k = 0; k < count; ++k) each.push_back(sums.narrow(0, k, 1));
  return each;
}

}  // namespace

Tensor sequence_counts(Stream& stream, const ObjectiveTokens& tokens) {
  return sums_of(stream, {}, tokens);
}

TermSums policy_loss(Tape& tape, const Var& losses, const PolicyColumns& columns, const ObjectiveTokens& tokens,
                     const Tensor& weights, const Tensor& shares, const Tensor& counts,
                     const kernels::PolicyOptions& options) {
  namespace term = kernels::policy_term;
  Stream& s = tape.stream();
  const int64_t T = losses.size(0);
  const Tensor ratios = log_ratios(s, losses, columns.old_logprobs, tokens.mask);
  const Tensor sums = counts.defined() ? sums_of(s, ratios, tokens) : Tensor();
  const Tensor terms = s.empty({term::count, T}, weights.dtype()), slopes = s.empty_like(weights);
  kernels::policy_terms(
      s, terms, slopes,
      {ratios, columns.advantages, columns.old_logprobs, columns.rollout_logprobs, tokens.mask, sums, counts},
      tokens.sequences, options);
  const Tensor loss = sums_of_terms(s, terms, term::surrogate, 1, weights).front();
  TermSums out{{}, sums_of_terms(s, terms, term::surrogate + 1, term::count - 1, shares)};
  if (!counts.defined()) {
    out.loss = tape.record("policy_loss", loss, {losses}, backward_of(tape, losses, slopes, weights));
    return out;
  }
  // The ratio of a sequence is a function of all its tokens, which have equal parts of its derivative.
  const Tensor weighted = s.empty_like(weights), spread = s.empty_like(weights);
  kernels::scaled_products(s, weighted, 1, {}, slopes, weights);
  kernels::sequence_means(s, spread, sums_of(s, weighted, tokens), counts, tokens.mask, tokens.sequences);
  out.loss = tape.record("policy_loss", loss, {losses}, backward_of(tape, losses, spread, {}));
  return out;
}

Var kl_loss(Tape& tape, const Var& losses, const Tensor& reference, const Tensor& mask, const Tensor& weights) {
  Stream& s = tape.stream();
  const Tensor terms = s.empty({1, losses.size(0)}, weights.dtype()), slopes = s.empty_like(weights);
  kernels::kl_terms(s, terms, slopes, log_ratios(s, losses, reference, mask), mask);
  const Tensor loss = sums_of_terms(s, terms, 0, 1, weights).front();
  return tape.record("kl_loss", loss, {losses}, backward_of(tape, losses, slopes, weights));
}

TermSums preference_loss(Tape& tape, const Var& losses, const Tensor& reference, const ObjectiveTokens& tokens,
                         const Tensor& weights, const Tensor& counts, const kernels::PreferenceOptions& options) {
  namespace term = kernels::preference_term;
  Stream& s = tape.stream();
  const Tensor ratios = log_ratios(s, losses, reference, tokens.mask), sums = sums_of(s, ratios, tokens);
  const Tensor terms = s.empty({term::count, losses.size(0)}, weights.dtype()), slopes = s.empty_like(weights);
  kernels::preference_terms(s, terms, slopes, {losses.value(), sums, counts, tokens.mask}, tokens.sequences, options);
  std::vector<Tensor> all = sums_of_terms(s, terms, 0, term::count, weights);
  const Tensor loss = all.front();
  all.erase(all.begin());
  return {tape.record("preference_loss", loss, {losses}, backward_of(tape, losses, slopes, weights)), std::move(all)};
}

}  // namespace witan::ops
