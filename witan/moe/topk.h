// The router whose tokens choose their K best experts: scores and selection, fused, with what losses and statistics are
// made of.
#pragma once

#include <optional>

#include "witan/kernels/selection.h"
#include "witan/moe/router.h"

namespace witan {

// Names of the statistics that ops::route() records, beside the losses of moe/balance.h.
inline constexpr const char* kRouterEntropy = "router_entropy";        // mean over tokens, nats
inline constexpr const char* kExpertCounts = "expert_counts";          // assignments, dropped ones included
inline constexpr const char* kLoadMaxOverMean = "load_max_over_mean";  // the busiest expert's assignments over the mean

std::vector<RouterStatistic> declare_topk_statistics();

// weight [E, D], and bias [E] where asked for. It computes in float32 (float64 models: float64). Arguments as of
// make_router().
std::unique_ptr<Router> make_topk_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                         Group* context);

// How experts are chosen, and the chosen weighed: the weights come from the scores alone, whatever decides the choice.
struct TopkSelection {
  int64_t topk = 1;
  kernels::Scoring scoring = kernels::Scores::softmax_of_chosen;
  std::optional<kernels::Selection> choice = {};  // none: the highest scores
};

namespace ops {
// logits [T, E] accumulator dtype; mathematics in kernels/router.h. Where `parts` is a group of several ranks, these
// are a micro-batch's tokens on one of them, which all have as many; losses, counts and statistics are of all its
// tokens, the same on every rank, and a loss's gradient on each is that of its own logits. A collective then.
// The load is balanced within each of `sequences` runs of T / sequences tokens, of which other ranks may hold more;
// with 1 over all tokens together. Losses are those of the choice of the highest scores, whatever the choice: as in
// DeepSeek-V3 (equation 18) and Megatron-Core. Throws ShapeError.
Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts = nullptr,
              int64_t sequences = 1);
}  // namespace ops

}  // namespace witan
