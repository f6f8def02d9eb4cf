// One thread per token; sums over all tokens take one block, and sums of a sequence the thread of its first token.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/objective/objective.h"
#include "witan/kernels/objective/rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSumThreads = 1024;

struct ObjectiveMath {
  __device__ static float exp(float x) { return expf(x); }
  __device__ static double exp(double x) { return ::exp(x); }
  __device__ static double log1p(double x) { return ::log1p(x); }
};

struct SequencePlaces {
  const int32_t* ids;
  const float* mask;
  int64_t tokens, row_tokens, capacity;

  SequencePlaces(const RowSequences& sequences, const Tensor& counted)
      : ids(ptr<int32_t>(sequences.ids)),
        mask(ptr<float>(counted)),
        tokens(counted.elements()),
        row_tokens(std::max<int64_t>(tokens / sequences.rows, 1)),
        capacity(sequences.capacity) {}
  // -1: the token does not count.
  __device__ int64_t operator[](int64_t t) const {
    return rules::sequence_of(t, row_tokens, capacity, mask[t], ids[t]);
  }
};

template <class Body>
__global__ void __launch_bounds__(kThreads) tokens_kernel(int64_t tokens, Body body) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) body(t);
}

template <class Body>
void for_tokens(Stream& stream, int64_t tokens, const Body& body) {
  if (tokens == 0) return;
  tokens_kernel<<<static_cast<unsigned>((tokens + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(tokens,
                                                                                                            body);
}

template <class A>
struct RatiosOfTokens {
  A* out;
  const A* losses;
  const float* others;  // one of the two, or neither
  const double* wide_others;
  const float* mask;
  __device__ void operator()(int64_t t) const {
    const auto other = [&] {
      return others ? static_cast<A>(others[t]) : wide_others ? static_cast<A>(wide_others[t]) : A(0);
    };
    out[t] = mask[t] > 0 ? -losses[t] - other() : A(0);
  }
};

// A token that begins a run of equal ids adds up the run: a sequence is one run of its row.
template <class A>
struct SumsOfSequences {
  double* sums;
  const A* values;
  SequencePlaces places;
  __device__ void operator()(int64_t t) const {
    const int32_t id = places.ids[t];
    const int64_t row = t / places.row_tokens, begin = row * places.row_tokens, end = begin + places.row_tokens;
    if (id < 0 || id >= places.capacity || (t > begin && places.ids[t - 1] == id)) return;
    double sum = 0;
    for (int64_t i = t; i < end && places.ids[i] == id; ++i)
      if (places.mask[i] > 0) sum += values ? static_cast<double>(values[i]) : 1.0;
    sums[row * places.capacity + id] = sum;
  }
};

template <class A>
struct WeightsOfSequences {
  A* weights;
  const double *number, *counts;
  SequencePlaces places;
  double scale;
  __device__ void operator()(int64_t t) const {
    const int64_t n = places[t];
    const double share = scale / fmax(*number, 1.0);
    const double count = n >= 0 && counts ? counts[n] : 1.0;
    weights[t] = static_cast<A>(n >= 0 ? static_cast<double>(places.mask[t]) * share / count : 0.0);
  }
};

template <class A>
struct PolicyOfTokens {
  A *terms, *slopes;
  const A* log_ratios;
  const float *advantages, *old_logprobs, *rollout_logprobs;
  const double *sums, *counts;
  SequencePlaces places;
  PolicyOptions options;
  __device__ void operator()(int64_t t) const {
    A* const term = terms + t;
    const int64_t n = places[t], T = places.tokens;
    if (n < 0) {
      for (int64_t k = 0; k < policy_term::count; ++k) term[k * T] = A(0);
      slopes[t] = A(0);
      return;
    }
    const A own = log_ratios[t];
    const A log_ratio = sums ? static_cast<A>(sums[n] / counts[n]) : own;
    A importance = 1;
    if (options.importance_cap > 0)
      importance = min(ObjectiveMath::exp(static_cast<A>(old_logprobs[t]) - static_cast<A>(rollout_logprobs[t])),
                       static_cast<A>(options.importance_cap));
    const auto found = rules::policy_of<ObjectiveMath>(log_ratio, static_cast<A>(advantages[t]), importance, options);
    term[policy_term::surrogate * T] = found.surrogate;
    term[policy_term::ratio * T] = found.ratio;
    term[policy_term::clipped_low * T] = found.clipped_low;
    term[policy_term::clipped_high * T] = found.clipped_high;
    term[policy_term::difference * T] = own < A(0) ? -own : own;
    slopes[t] = found.slope;
  }
};

template <class A>
struct KlOfTokens {
  A *terms, *slopes;
  const A* log_ratios;
  const float* mask;
  __device__ void operator()(int64_t t) const {
    const auto found = rules::kl_of<ObjectiveMath>(mask[t] > 0 ? log_ratios[t] : A(0));
    terms[t] = found.value;
    slopes[t] = found.slope;
  }
};

template <class A>
struct PreferencesOfTokens {
  A *terms, *slopes;
  const A* losses;
  const double *sums, *counts;
  SequencePlaces places;
  PreferenceOptions options;
  __device__ void operator()(int64_t t) const {
    A* const term = terms + t;
    const int64_t n = places[t], T = places.tokens;
    for (int64_t k = 0; k < preference_term::count; ++k) term[k * T] = A(0);
    slopes[t] = A(0);
    if (n < 0) return;
    const int32_t id = places.ids[t];
    const int64_t chosen = n - id % 2, rejected = chosen + 1;
    if (id / 2 * 2 + 1 >= places.capacity || counts[chosen] == 0 || counts[rejected] == 0) return;
    const bool is_chosen = n == chosen;
    const int64_t other = is_chosen ? rejected : chosen;
    const auto found =
        rules::pair_of<ObjectiveMath>(sums[n], sums[other], counts[n], counts[other], is_chosen, options);
    const double own = is_chosen ? 2 * static_cast<double>(losses[t]) : 0;
    term[preference_term::loss * T] = static_cast<A>(found.loss + options.sft_weight * own);
    term[preference_term::accuracy * T] = static_cast<A>(found.accuracy);
    term[preference_term::margin * T] = static_cast<A>(found.margin);
    term[(is_chosen ? preference_term::chosen : preference_term::rejected) * T] = static_cast<A>(found.reward);
    term[preference_term::chosen_loss * T] = static_cast<A>(own);
    slopes[t] = static_cast<A>(found.slope - (is_chosen ? 2 * options.sft_weight : 0));
  }
};

// One block for each sum.
template <class A>
__global__ void __launch_bounds__(kSumThreads)
    weighted_sums_kernel(A* sums, const A* terms, const A* weights, int64_t tokens) {
  __shared__ double shared[kSumThreads / 32];
  const A* const own = terms + blockIdx.x * tokens;
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kSumThreads)
    sum += static_cast<double>(weights[t]) * static_cast<double>(own[t]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<A>(sum);
}

template <class A>
struct MeansOfSequences {
  A* out;
  const double *sums, *counts;
  SequencePlaces places;
  __device__ void operator()(int64_t t) const {
    const int64_t n = places[t];
    out[t] = n >= 0 ? static_cast<A>(sums[n] / counts[n]) : A(0);
  }
};

template <class A>
struct Products {
  A* out;
  A scale;
  const A *seed, *a, *b;
  __device__ void operator()(int64_t t) const {
    const A factor = scale * (seed ? *seed : A(1));
    out[t] = factor * a[t] * (b ? b[t] : A(1));
  }
};

}  // namespace

void log_ratios(Stream& stream, const Tensor& out, const Tensor& losses, const Tensor& others, const Tensor& mask) {
  const bool given = others.defined(), wide = given && others.dtype() == DType::f64;
  dispatch_accumulator(out.dtype(), [&]<class A>() {
    for_tokens(stream, mask.elements(),
               RatiosOfTokens<A>{ptr<A>(out), ptr<A>(losses), given && !wide ? ptr<float>(others) : nullptr,
                                 wide ? ptr<double>(others) : nullptr, ptr<float>(mask)});
  });
}

void sequence_sums(Stream& stream, const Tensor& sums, const Tensor& values, const Tensor& mask,
                   const RowSequences& sequences) {
  stream.zero(sums);
  dispatch_accumulator(values.defined() ? values.dtype() : DType::f64, [&]<class A>() {
    for_tokens(stream, mask.elements(),
               SumsOfSequences<A>{ptr<double>(sums), ptr<A>(values), SequencePlaces(sequences, mask)});
  });
}

void sequence_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& number,
                      const Tensor& counts, const RowSequences& sequences, double scale) {
  dispatch_accumulator(weights.dtype(), [&]<class A>() {
    for_tokens(stream, mask.elements(),
               WeightsOfSequences<A>{ptr<A>(weights), ptr<double>(number), ptr<double>(counts),
                                     SequencePlaces(sequences, mask), scale});
  });
}

void policy_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PolicyInputs& inputs,
                  const RowSequences& sequences, const PolicyOptions& options) {
  dispatch_accumulator(terms.dtype(), [&]<class A>() {
    for_tokens(stream, inputs.mask.elements(),
               PolicyOfTokens<A>{ptr<A>(terms), ptr<A>(slopes), ptr<A>(inputs.log_ratios),
                                 ptr<float>(inputs.advantages), ptr<float>(inputs.old_logprobs),
                                 ptr<float>(inputs.rollout_logprobs), ptr<double>(inputs.sums),
                                 ptr<double>(inputs.counts), SequencePlaces(sequences, inputs.mask), options});
  });
}

void kl_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const Tensor& log_ratios, const Tensor& mask) {
  dispatch_accumulator(terms.dtype(), [&]<class A>() {
    for_tokens(stream, mask.elements(),
               KlOfTokens<A>{ptr<A>(terms), ptr<A>(slopes), ptr<A>(log_ratios), ptr<float>(mask)});
  });
}

void preference_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PreferenceInputs& inputs,
                      const RowSequences& sequences, const PreferenceOptions& options) {
  dispatch_accumulator(terms.dtype(), [&]<class A>() {
    for_tokens(stream, inputs.mask.elements(),
               PreferencesOfTokens<A>{ptr<A>(terms), ptr<A>(slopes), ptr<A>(inputs.losses), ptr<double>(inputs.sums),
                                      ptr<double>(inputs.counts), SequencePlaces(sequences, inputs.mask), options});
  });
}

void weighted_sums(Stream& stream, const Tensor& sums, const Tensor& terms, const Tensor& weights) {
  dispatch_accumulator(sums.dtype(), [&]<class A>() {
    weighted_sums_kernel<<<static_cast<unsigned>(terms.size(0)), kSumThreads, 0, native(stream)>>>(
        ptr<A>(sums), ptr<A>(terms), ptr<A>(weights), weights.elements());
  });
}

void sequence_means(Stream& stream, const Tensor& out, const Tensor& sums, const Tensor& counts, const Tensor& mask,
                    const RowSequences& sequences) {
  dispatch_accumulator(out.dtype(), [&]<class A>() {
    for_tokens(
        stream, mask.elements(),
        MeansOfSequences<A>{ptr<A>(out), ptr<double>(sums), ptr<double>(counts), SequencePlaces(sequences, mask)});
  });
}

void scaled_products(Stream& stream, const Tensor& out, double scale, const Tensor& seed, const Tensor& a,
                     const Tensor& b) {
  dispatch_accumulator(out.dtype(), [&]<class A>() {
    for_tokens(stream, out.elements(),
               Products<A>{ptr<A>(out), static_cast<A>(scale), ptr<A>(seed), ptr<A>(a), ptr<A>(b)});
  });
}

}  // namespace witan::kernels::cuda
