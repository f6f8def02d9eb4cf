// The plan as a page for people.
#include <fmt/format.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/plan.h"

namespace witan {
namespace {

std::string count_line(const char* what, int64_t count) {
  return fmt::format("  {:<34} {:>16}\n", what, fmt::format("{}", fmt::group_digits(count)));
}

std::string counts_section(const Plan& plan) {
  const ParameterCounts& counts = plan.counts;
  return "Parameters\n" + count_line("exact", counts.exact) + count_line("active for one token", counts.active) +
         count_line("of them in experts", counts.experts) +
         count_line("as Megatron-LM counts: layers", counts.megatron_layers) +
         count_line("  embedding layers", counts.megatron_embeddings) + count_line("  total", counts.megatron_total());
}

std::string flops_section(const Plan& plan) {
  std::map<std::string, Cost> parts;
  for (const RankPlan& rank : plan.ranks)
    for (const auto& [part, cost] : rank.parts) parts[part] += cost;
  std::vector<std::pair<std::string, Cost>> sorted(parts.begin(), parts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.flops > b.second.flops; });
  std::string out =
      fmt::format("\nOne step: {} tokens, {}FLOP over all ranks\n  {:<18} {:>12} {:>8} {:>14}\n", plan.tokens_per_step,
                  format_count(plan.step_flops), "part", "FLOP", "share", "bytes moved");
  for (const auto& [part, cost] : sorted)
    out += fmt::format("  {:<18} {:>12} {:>6.1f} % {:>14}\n", part, format_count(cost.flops),
                       plan.step_flops > 0 ? 100 * cost.flops / plan.step_flops : 0.0, format_bytes(cost.bytes));
  return out;
}

std::string memory_section(const Plan& plan) {
  std::string out = fmt::format(
      "\nMemory of each rank: the most that each kind takes, and the arena that holds them\n  {:<6}", "rank");
  for (const auto& [tag, bytes] : plan.ranks.front().tags) out += fmt::format(" {:>13}", tag);
  out += fmt::format(" {:>13}\n", "arena");
  for (size_t first = 0, end; first < plan.ranks.size(); first = end) {  // ranks of equal needs share a line
    const RankPlan& rank = plan.ranks[first];
    for (end = first + 1; end < plan.ranks.size() && plan.ranks[end].tags == rank.tags &&
                          plan.ranks[end].arena_bytes == rank.arena_bytes;)
      ++end;
    out += fmt::format("  {:<6}", end == first + 1 ? cat(first) : cat(first, "-", end - 1));
    for (const auto& [tag, bytes] : rank.tags) out += fmt::format(" {:>13}", format_bytes(static_cast<double>(bytes)));
    out += fmt::format(" {:>13}\n", format_bytes(static_cast<double>(rank.arena_bytes)));
  }
  return out;
}

std::string sent_section(const Plan& plan) {
  std::string out;
  for (const auto& [axis, operations] : plan.ranks.front().sent)
    for (const auto& [operation, bytes] : operations)
      out += fmt::format("  {:<18} {:<18} {:>13}\n", axis, operation, format_bytes(bytes));
  if (out.empty()) return out;
  return fmt::format("\nSent by rank 0 in one step\n  {:<18} {:<18} {:>13}\n", "axis", "operation", "bytes") + out;
}

}  // namespace

std::string format_plan(const Plan& plan) {
  return counts_section(plan) + flops_section(plan) + memory_section(plan) + sent_section(plan);
}

}  // namespace witan
