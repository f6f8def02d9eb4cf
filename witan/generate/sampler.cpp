#include "witan/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

struct Candidate {
  float logit;
  int32_t id;
};

// Orders the most likely first, and the lower id first if logits are equal.
bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Calls take(candidate) for each token that is not ruled out, by id.
template <class Take>
void for_candidates(std::span<const float> logits, const Take& take) {
  bool any = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    require<DivergedError>(logit < std::numeric_limits<float>::infinity(), "sampling: the logit of token ", id, " is ",
                           logit,
                           ": the model's weights or activations are no longer finite; use an earlier checkpoint");
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    any = true;
    take(Candidate{logit, static_cast<int32_t>(id)});
  }
  require<DivergedError>(any, "sampling: none of the ", logits.size(),
                         " tokens has a finite logit, so there is none to choose");
}

std::vector<Candidate> candidates_of(std::span<const float> logits) {
  std::vector<Candidate> out;
  out.reserve(logits.size());
  for_candidates(logits, [&](const Candidate& candidate) { out.push_back(candidate); });
  return out;
}

int32_t likeliest_of(std::span<const float> logits) {
  Candidate best{-std::numeric_limits<float>::infinity(), 0};
  for_candidates(logits, [&](const Candidate& candidate) {
    if (candidate.logit > best.logit) best = candidate;
  });
  return best.id;
}

// Keeps the first `count` by rank, in order.
void keep_first(std::vector<Candidate>& candidates, size_t count) {
  count = std::min(count, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count), candidates.end(),
                    ranks_before);
  candidates.resize(count);
}

// exp((logit - largest) / temperature): unnormalized probabilities.
std::vector<double> weights_of(const std::vector<Candidate>& candidates, double temperature) {
  const double top = std::ranges::max(candidates, {}, &Candidate::logit).logit;
  std::vector<double> weights;
  weights.reserve(candidates.size());
  for (const Candidate& candidate : candidates) weights.push_back(std::exp((candidate.logit - top) / temperature));
  return weights;
}

double sum_of(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return sum;
}

// Keeps the first by rank that have at least `share` of the total weight. Large vocabularies are not sorted as a whole,
// since few tokens have most of it.
void keep_share(std::vector<Candidate>& candidates, double share, double temperature) {
  const double wanted = share * sum_of(weights_of(candidates, temperature));
  for (size_t sorted = std::min<size_t>(candidates.size(), 256);; sorted = std::min(candidates.size(), 8 * sorted)) {
    const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::partial_sort(candidates.begin(), end, candidates.end(), ranks_before);
    const std::vector<double> weights = weights_of({candidates.begin(), end}, temperature);
    double sum = 0;
    size_t count = 0;
    while (count < weights.size() && sum < wanted) sum += weights[count++];
    if (sum < wanted && sorted < candidates.size()) continue;
    candidates.resize(count);
    return;
  }
}

// Keeps those with at least `share` of the likeliest one's weight, including that one.
void keep_near_top(std::vector<Candidate>& candidates, double share, double temperature) {
  const double top = std::ranges::max(candidates, {}, &Candidate::logit).logit;
  std::erase_if(candidates,
                [&](const Candidate& candidate) { return std::exp((candidate.logit - top) / temperature) < share; });
}

// The first index at which the running sum exceeds `share` of the total, but never one of weight zero.
size_t index_at(const std::vector<double>& weights, double share) {
  const double target = share * sum_of(weights);
  double sum = 0;
  size_t index = 0, last = 0;
  for (; index < weights.size(); ++index) {
    if (weights[index] > 0) last = index;
    if ((sum += weights[index]) > target) return index;
  }
  return last;  // rounding put the target at the total sum
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  require<ConfigError>(options.temperature >= 0 && std::isfinite(options.temperature),
                       "temperature must be 0 (greedy) or a positive number, got ", options.temperature);
  require<ConfigError>(options.top_k >= 0, "top_k must be 0 (all tokens) or a positive number of tokens, got ",
                       options.top_k);
  require<ConfigError>(options.top_p > 0 && options.top_p <= 1,
                       "top_p must be above 0 and at most 1 (all tokens), got ", options.top_p);
  require<ConfigError>(options.min_p >= 0 && options.min_p <= 1,
                       "min_p must be from 0 (all tokens) to 1 (only the likeliest), got ", options.min_p);
  require<ConfigError>(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
                       "repetition_penalty must be a positive number (1: none), got ", options.repetition_penalty);
  require<ConfigError>(std::isfinite(options.presence_penalty), "presence_penalty must be a number (0: none), got ",
                       options.presence_penalty);
  require<ConfigError>(std::isfinite(options.frequency_penalty), "frequency_penalty must be a number (0: none), got ",
                       options.frequency_penalty);
  for (const auto& [token, bias] : options.logit_bias)
    require<ConfigError>(std::isfinite(bias), "logit_bias of token ", token, " must be a number, got ", bias);
}

bool Sampler::changes_logits() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0 ||
         !options_.logit_bias.empty();
}

std::vector<float> Sampler::changed(std::span<const float> logits, const SeenTokens& seen) const {
  std::vector<float> out(logits.begin(), logits.end());
  const auto change = [&](int32_t token, const auto& how) {
    if (token < 0 || static_cast<size_t>(token) >= out.size()) return;
    float& logit = out[static_cast<size_t>(token)];
    logit = how(logit);
  };
  if (const auto penalty = static_cast<float>(options_.repetition_penalty); penalty != 1)
    for (const int32_t token : seen.all)
      change(token, [&](float logit) { return logit < 0 ? logit * penalty : logit / penalty; });
  for (const auto& [token, count] : seen.generated)
    change(token, [&](float logit) {
      const double lowered = options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count);
      return static_cast<float>(static_cast<double>(logit) - lowered);
    });
  for (const auto& [token, bias] : options_.logit_bias)
    change(token, [&](float logit) { return static_cast<float>(static_cast<double>(logit) + bias); });
  return out;
}

int32_t Sampler::next(std::span<const float> logits, int64_t position) const {
  if (options_.temperature == 0) return likeliest_of(logits);
  std::vector<Candidate> candidates = candidates_of(logits);
  if (options_.top_k > 0) keep_first(candidates, static_cast<size_t>(options_.top_k));
  if (options_.top_p < 1) keep_share(candidates, options_.top_p, options_.temperature);
  if (options_.min_p > 0) keep_near_top(candidates, options_.min_p, options_.temperature);
  const Philox rng(options_.seed, Philox::stream_of("sampler"));
  const double share = rng.uniform(static_cast<uint64_t>(position));
  return candidates[index_at(weights_of(candidates, options_.temperature), share)].id;
}

}  // namespace witan
