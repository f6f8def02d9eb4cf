#include "witan/kernels/objective/objective.h"

#include <cmath>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/objective/rules.h"

namespace witan::kernels::cpu {
namespace {

struct ObjectiveMath {
  template <class A>
  static A exp(A x) {
    return std::exp(x);
  }
  static double log1p(double x) { return std::log1p(x); }
};

// Calls body.template operator()<A>() with an accumulator type: float or double.
template <class Body>
void dispatch_terms(DType dtype, const Body& body) {
  if (dtype == DType::f64) return body.template operator()<double>();
  assert(dtype == DType::f32);
  body.template operator()<float>();
}

// The places of a batch's tokens among its sequences.
class SequencePlaces {
 public:
  SequencePlaces(const RowSequences& sequences, const Tensor& mask)
      : ids_(sequences.ids.data<int32_t>()),
        mask_(mask.data<float>()),
        row_tokens_(std::max<int64_t>(mask.elements() / sequences.rows, 1)),
        capacity_(sequences.capacity) {}
  // -1: the token does not count.
  int64_t operator[](int64_t t) const { return rules::sequence_of(t, row_tokens_, capacity_, mask_[t], ids_[t]); }

 private:
  const int32_t* ids_;
  const float* mask_;
  int64_t row_tokens_, capacity_;
};

template <class Body>
void for_tokens_of(Stream& stream, const Tensor& mask, const Body& body) {
  constexpr int64_t kTokens = 1024;  // of a task
  stream.pool().for_ranges(mask.elements(), kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) body(t);
  });
}

}  // namespace

void log_ratios(Stream& stream, const Tensor& out, const Tensor& losses, const Tensor& others, const Tensor& mask) {
  const bool given = others.defined(), wide = given && others.dtype() == DType::f64;
  dispatch_terms(out.dtype(), [&]<class A>() {
    for_tokens_of(stream, mask, [&](int64_t t) {
      const auto other = [&] {
        return !given ? A(0) : wide ? A(others.data<double>()[t]) : A(others.data<float>()[t]);
      };
      out.data<A>()[t] = mask.data<float>()[t] > 0 ? -losses.data<A>()[t] - other() : A(0);
    });
  });
}

void sequence_sums(Stream&, const Tensor& sums, const Tensor& values, const Tensor& mask,
                   const RowSequences& sequences) {
  const SequencePlaces places(sequences, mask);
  std::ranges::fill(sums.span<double>(), 0.0);
  dispatch_terms(values.defined() ? values.dtype() : DType::f64, [&]<class A>() {
    for (int64_t t = 0; t < mask.elements(); ++t)
      if (const int64_t n = places[t]; n >= 0)
        sums.data<double>()[n] += values.defined() ? static_cast<double>(values.data<A>()[t]) : 1.0;
  });
}

void sequence_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& number,
                      const Tensor& counts, const RowSequences& sequences, double scale) {
  const SequencePlaces places(sequences, mask);
  const double share = scale / std::max(number.data<double>()[0], 1.0);
  dispatch_terms(weights.dtype(), [&]<class A>() {
    for_tokens_of(stream, mask, [&](int64_t t) {
      const int64_t n = places[t];
      const double count = n >= 0 && counts.defined() ? counts.data<double>()[n] : 1;
      weights.data<A>()[t] = A(n >= 0 ? static_cast<double>(mask.data<float>()[t]) * share / count : 0.0);
    });
  });
}

void policy_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PolicyInputs& inputs,
                  const RowSequences& sequences, const PolicyOptions& options) {
  const SequencePlaces places(sequences, inputs.mask);
  const int64_t T_ = inputs.mask.elements();
  dispatch_terms(terms.dtype(), [&]<class A>() {
    for_tokens_of(stream, inputs.mask, [&](int64_t t) {
      A* const term = terms.data<A>() + t;
      const int64_t n = places[t];
      if (n < 0) {
        for (int64_t k = 0; k < policy_term::count; ++k) term[k * T_] = A(0);
        slopes.data<A>()[t] = A(0);
        return;
      }
      const A own = inputs.log_ratios.data<A>()[t];
      const A log_ratio =
          inputs.sums.defined() ? A(inputs.sums.data<double>()[n] / inputs.counts.data<double>()[n]) : own;
      A importance = A(1);
      if (options.importance_cap > 0)
        importance =
            std::min(std::exp(A(inputs.old_logprobs.data<float>()[t]) - A(inputs.rollout_logprobs.data<float>()[t])),
                     A(options.importance_cap));
      const auto found =
          rules::policy_of<ObjectiveMath>(log_ratio, A(inputs.advantages.data<float>()[t]), importance, options);
      term[policy_term::surrogate * T_] = found.surrogate;
      term[policy_term::ratio * T_] = found.ratio;
      term[policy_term::clipped_low * T_] = found.clipped_low;
      term[policy_term::clipped_high * T_] = found.clipped_high;
      term[policy_term::difference * T_] = std::abs(own);
      slopes.data<A>()[t] = found.slope;
    });
  });
}

void kl_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const Tensor& log_ratios, const Tensor& mask) {
  dispatch_terms(terms.dtype(), [&]<class A>() {
    for_tokens_of(stream, mask, [&](int64_t t) {
      const bool counts = mask.data<float>()[t] > 0;
      const auto found = rules::kl_of<ObjectiveMath>(counts ? log_ratios.data<A>()[t] : A(0));
      terms.data<A>()[t] = found.value;
      slopes.data<A>()[t] = found.slope;
    });
  });
}

void preference_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PreferenceInputs& inputs,
                      const RowSequences& sequences, const PreferenceOptions& options) {
  const SequencePlaces places(sequences, inputs.mask);
  const int64_t T_ = inputs.mask.elements();
  const double *sum = inputs.sums.data<double>(), *count = inputs.counts.data<double>();
  dispatch_terms(terms.dtype(), [&]<class A>() {
    for_tokens_of(stream, inputs.mask, [&](int64_t t) {
      A* const term = terms.data<A>() + t;
      for (int64_t k = 0; k < preference_term::count; ++k) term[k * T_] = A(0);
      slopes.data<A>()[t] = A(0);
      const int64_t n = places[t];
      if (n < 0) return;
      const int32_t id = sequences.ids.data<int32_t>()[t];
      const int64_t chosen = n - id % 2, rejected = chosen + 1;
      if (id / 2 * 2 + 1 >= sequences.capacity || count[chosen] == 0 || count[rejected] == 0) return;
      const bool is_chosen = n == chosen;
      const int64_t other = is_chosen ? rejected : chosen;
      const auto found = rules::pair_of<ObjectiveMath>(sum[n], sum[other], count[n], count[other], is_chosen, options);
      const double own = is_chosen ? 2 * static_cast<double>(inputs.losses.data<A>()[t]) : 0;
      term[preference_term::loss * T_] = A(found.loss + options.sft_weight * own);
      term[preference_term::accuracy * T_] = A(found.accuracy);
      term[preference_term::margin * T_] = A(found.margin);
      term[(is_chosen ? preference_term::chosen : preference_term::rejected) * T_] = A(found.reward);
      term[preference_term::chosen_loss * T_] = A(own);
      slopes.data<A>()[t] = A(found.slope - (is_chosen ? 2 * options.sft_weight : 0));
    });
  });
}

void weighted_sums(Stream& stream, const Tensor& sums, const Tensor& terms, const Tensor& weights) {
  const int64_t T_ = weights.elements();
  dispatch_terms(sums.dtype(), [&]<class A>() {
    stream.pool().run(terms.size(0), [&](int64_t k) {
      double sum = 0;
      for (int64_t t = 0; t < T_; ++t)
        sum += static_cast<double>(weights.data<A>()[t]) * static_cast<double>(terms.data<A>()[k * T_ + t]);
      sums.data<A>()[k] = A(sum);
    });
  });
}

void sequence_means(Stream& stream, const Tensor& out, const Tensor& sums, const Tensor& counts, const Tensor& mask,
                    const RowSequences& sequences) {
  const SequencePlaces places(sequences, mask);
  dispatch_terms(out.dtype(), [&]<class A>() {
    for_tokens_of(stream, mask, [&](int64_t t) {
      const int64_t n = places[t];
      out.data<A>()[t] = n >= 0 ? A(sums.data<double>()[n] / counts.data<double>()[n]) : A(0);
    });
  });
}

void scaled_products(Stream& stream, const Tensor& out, double scale, const Tensor& seed, const Tensor& a,
                     const Tensor& b) {
  dispatch_terms(out.dtype(), [&]<class A>() {
    const A factor = A(scale) * (seed.defined() ? *seed.data<A>() : A(1));
    for_tokens_of(stream, out, [&](int64_t t) {
      out.data<A>()[t] = factor * a.data<A>()[t] * (b.defined() ? b.data<A>()[t] : A(1));
    });
  });
}

}  // namespace witan::kernels::cpu
