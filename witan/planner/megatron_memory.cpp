#include "witan/planner/megatron_memory.h"

#include <fmt/core.h>

#include "witan/model/counts.h"

namespace witan {
namespace {

std::string line(const char* what, double with, double without) {
  constexpr double kMegabyte = 1 << 20;  // as Megatron-LM writes MB
  return fmt::format("  {:<34} {:>13.2f} MB {:>13.2f} MB\n", what, with / kMegabyte, without / kMegabyte);
}

}  // namespace

std::string format_megatron_memory(const RunConfig& config) {
  if (config.parallel.model_ranks() > 1) return "";
  const int64_t ranks = config.parallel.ranks, divided = config.parallel.expert_model_parallel_size;
  std::string out = fmt::format(
      "\nWeights, gradients and optimizer of each of {} rank{} in Megatron-LM, by its formula\n  {:<34} {:>16} "
      "{:>16}\n",
      ranks, ranks == 1 ? "" : "s", "", "distributed opt.", "without");
  out += line("as it prints them", megatron_weight_and_optimizer_bytes(config.model, ranks, true),
              megatron_weight_and_optimizer_bytes(config.model, ranks, false));
  const std::string exact = divided > 1 ? fmt::format("exactly, experts over {} ranks", divided) : "exactly";
  out += line(exact.c_str(), weight_and_optimizer_bytes(config.model, ranks, divided, true),
              weight_and_optimizer_bytes(config.model, ranks, divided, false));
  return out;
}

}  // namespace witan
