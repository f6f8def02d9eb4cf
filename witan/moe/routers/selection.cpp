#include "witan/moe/routers/selection.h"

#include <cmath>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/comm/context.h"

namespace witan {
namespace {

// The scores by which experts are compared, as in Megatron-LM: the logits if the softmax comes after the choice.
kernels::Scores keys_of(const MoeConfig& config) {
  const kernels::Scores scores = config.scoring().scores;
  if (kernels::scores_each_alone(scores)) return scores;
  return config.moe_router_pre_softmax ? kernels::Scores::softmax : kernels::Scores::softmax_of_chosen;
}

kernels::Dropout place(const Randomness& randomness, uint64_t site) {
  return {.seed = randomness.seed, .step = randomness.step, .micro_batch = randomness.micro_batch, .site = site};
}

}  // namespace

ExpertSelection::ExpertSelection(const MoeConfig& config, const std::string& path)
    : config_(config),
      choice_site_(Philox::stream_of(path + ".choice")),
      jitter_site_(Philox::stream_of(path + ".jitter")) {
  if (config.moe_router_selection == "zipf")
    zipf_exponent_ = zipf_exponent(config.num_experts, config.moe_router_topk, config.zipf_imbalance());
}

int64_t ExpertSelection::per_token(Dropping dropping) const {
  return config_.experts_choose() && dropping == Dropping::by_capacity ? config_.num_experts : config_.moe_router_topk;
}

std::optional<kernels::Selection> ExpertSelection::choice(Stream& stream, const Tokens& tokens,
                                                          const Tensor& bias) const {
  kernels::Selection selection{.keys = keys_of(config_), .bias = bias};
  if (config_.moe_router_selection == "sinkhorn" && tokens.dropping == Dropping::by_capacity) {
    selection.keys = kernels::Scores::softmax_of_chosen;
    selection.bias = sinkhorn(stream, tokens);
    return selection;
  }
  selection.random = random_keys(tokens);
  if (config_.moe_router_num_groups > 0) {
    selection.groups = config_.moe_router_num_groups;
    selection.group_topk = config_.moe_router_group_topk;
    selection.group_score_topk = config_.group_score_topk();
  }
  if (!bias.defined() && selection.groups == 1 && !selection.random.on()) return std::nullopt;
  return selection;
}

kernels::RandomKeys ExpertSelection::random_keys(const Tokens& tokens) const {
  const std::string& selection = config_.moe_router_selection;
  const Randomness& randomness = tokens.source.randomness;
  const int64_t T = tokens.logits.size(0);
  if (selection == "hash") {
    const Tensor& ids = tokens.source.ids;
    require<ShapeError>(ids.defined() && ids.elements() == T,
                        "moe_router_selection = \"hash\" needs the id of each of ", T, " tokens");
    return {.where = {.site = choice_site_}, .ids = ids.reshape({T})};
  }
  const bool forced = selection == "uniform" || selection == "skew" || selection == "zipf" || selection == "hot";
  if (!forced || !randomness.step.defined() || tokens.dropping != Dropping::by_capacity) return {};
  kernels::RandomKeys keys{.where = place(randomness, choice_site_)};
  keys.where.part = part_of(randomness, T / tokens.sequences, 1, nullptr);
  if (selection == "skew") keys.skew = config_.moe_router_skew;
  if (selection == "hot") keys.skew = keys.hot = 1;
  keys.exponent = zipf_exponent_;
  return keys;
}

// The logits of all ranks are gathered first, so that the bias has the bits of a single rank's.
Tensor ExpertSelection::sinkhorn(Stream& stream, const Tokens& tokens) const {
  const int64_t T = tokens.logits.size(0), E = tokens.logits.size(1), B = tokens.sequences;
  Tensor logits = tokens.logits, ids = tokens.source.sequence_ids;
  if (tokens.parts && tokens.parts->size() > 1) {
    const int64_t all = T * tokens.parts->size();
    logits = gather_positions(stream, logits.reshape({B, T / B, E}), *tokens.parts).reshape({all, E});
    if (ids.defined()) ids = gather_positions(stream, ids.reshape({B, T / B, 1}), *tokens.parts).reshape({all});
  }
  const Tensor bias = stream.empty({E}, logits.dtype());
  kernels::sinkhorn_bias(stream, bias, logits, config_.moe_router_sinkhorn_iterations,
                         config_.moe_router_sinkhorn_tolerance, ids);
  return bias;
}

kernels::Dropout ExpertSelection::jitter(const TokenSource& source, const Shape& x,
                                         const TensorAxis* divides_tokens) const {
  if (config_.moe_input_jitter_eps == 0 || !source.randomness.step.defined()) return {};
  kernels::Dropout where = place(source.randomness, jitter_site_);
  if (x.dims() == 3) where.part = part_of(source.randomness, x[1], x[2], divides_tokens);
  return where;
}

namespace {

constexpr double kMostExponent = 16;

// The probability that expert 0 is among the first K to arrive. If v is the probability that it has not arrived by some
// time, expert e has not arrived with probability v^rate; expert 0 is among the first K if fewer than K others have.
double share_of_the_first(int64_t E, int64_t K, double exponent) {
  constexpr int kPoints = 64;
  std::vector<double> rates;
  for (int64_t e = 1; e < E; ++e) rates.push_back(std::pow(static_cast<double>(e + 1), -exponent));
  double share = 0;
  for (int point = 0; point < kPoints; ++point) {
    // Points are denser near v = 1, where the first of many experts arrive.
    const double y = (point + 0.5) / kPoints, v = 1 - y * y * y;
    std::vector<double> arrived(static_cast<size_t>(K));  // [n]: the probability that n of the others have
    arrived[0] = 1;
    for (const double rate : rates) {
      const double late = std::pow(v, rate);
      for (size_t n = arrived.size(); n-- > 0;)
        arrived[n] = arrived[n] * late + (n > 0 ? arrived[n - 1] * (1 - late) : 0);
    }
    for (const double probability : arrived) share += probability * 3 * y * y / kPoints;
  }
  return share;
}

}  // namespace

double zipf_exponent(int64_t E, int64_t K, double imbalance) {
  const double wanted = imbalance * static_cast<double>(K) / static_cast<double>(E);
  double low = 0, high = kMostExponent;
  for (int i = 0; i < 24; ++i) {
    const double middle = (low + high) / 2;
    (share_of_the_first(E, K, middle) < wanted ? low : high) = middle;
  }
  return high;
}

}  // namespace witan
