// The router whose tokens choose their K best experts: its parameters, buffers and statistics.
#pragma once

#include <span>

#include "witan/moe/routers/route.h"
#include "witan/moe/routers/router.h"

namespace witan {

// Names of its statistics, beside those of moe/routers/route.h.
inline constexpr const char* kLoadMaxOverMean = "load_max_over_mean";  // the busiest expert's assignments over the mean
inline constexpr const char* kDeadExperts = "dead_experts";            // those without an assignment in a step
inline constexpr const char* kExpertBias = "expert_bias";              // that experts are chosen by, where there is one

// The first of these, of an expert's assignments each; 0 where there are none.
double max_over_mean(std::span<const double> counts);

std::vector<RouterStatistic> declare_topk_statistics(const MoeConfig& config);

// weight [E, D], and bias [E] where asked for. It computes in float32 (float64 models: float64). Arguments as of
// make_router().
std::unique_ptr<Router> make_topk_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                         Group* context);

}  // namespace witan
