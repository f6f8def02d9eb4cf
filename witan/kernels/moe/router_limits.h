// What the router's kernels hold in a GPU's shared memory and registers; the CPU's know no bounds.
#pragma once

namespace witan::kernels {

inline constexpr int kMostExpertsOnGpu = 1024, kMostChosenOnGpu = 64;  // num_experts, moe_router_topk

}  // namespace witan::kernels
