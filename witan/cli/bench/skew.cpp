#include "witan/cli/bench/skew.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/kernels/moe/expert_replicas.h"
#include "witan/moe/routers/router.h"

namespace witan::cli {
namespace {

// Of the text as a whole.
std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Largest load over the mean of ranks that have `places` each; place [R, E] of counts [R, E].
double fullest(const Tensor& counts, const Tensor& place, int64_t places) {
  std::vector<double> loads(static_cast<size_t>(counts.size(0)));
  for (int64_t i = 0; i < counts.elements(); ++i)
    loads[static_cast<size_t>(place.data<int64_t>()[i] / places)] += static_cast<double>(counts.data<int64_t>()[i]);
  return max_over_mean(loads);
}

}  // namespace

RankLoad rank_load(const std::vector<std::vector<int64_t>>& counts, int64_t ranks, int64_t slots) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 26), pool);
  RankLoad worst;
  for (const std::vector<int64_t>& layer : counts) {
    const auto E = static_cast<int64_t>(layer.size());
    const Tensor each = stream.empty({ranks, E}, DType::i64);
    for (int64_t i = 0; i < ranks * E; ++i) {
      const int64_t all = layer[static_cast<size_t>(i % E)], rank = i / E;
      each.data<int64_t>()[i] = all * (rank + 1) / ranks - all * rank / ranks;
    }
    const auto with = [&](int64_t of_each) {
      const kernels::ReplicaChoice choice{stream.empty({ranks, of_each}, DType::i64),
                                          stream.empty({ranks, E}, DType::i64)};
      kernels::choose_replicas(stream, choice, each);
      return fullest(each, choice.place, E / ranks + of_each);
    };
    worst.at_home = std::max(worst.at_home, with(0));
    worst.balanced = std::max(worst.balanced, with(slots));
  }
  return worst;
}

void add_skew(CLI::App& command, std::string& skew) {
  add_option(command, "--skew", skew,
             "Load experts unevenly: 0.5 sends that share of tokens to the first K experts, 4x draws experts by a Zipf "
             "law whose largest load is 4 times the mean, hot sends every token to expert 0")
      .type_name("SHARE|RATIOx|hot")
      .group("router");
}

void apply_skew(MoeConfig& moe, const std::string& skew) {
  if (skew.empty()) return;
  require<UsageError>(moe.num_experts > 0, "--skew ", skew, " loads experts unevenly, and the model has none");
  if (skew == "hot") {
    moe.moe_router_selection = "hot";
    return;
  }
  const bool ratio = skew.ends_with('x');
  const auto value = number_of(std::string_view(skew).substr(0, skew.size() - (ratio ? 1 : 0)));
  require<UsageError>(value && (ratio ? *value >= 1 : *value >= 0 && *value <= 1), "--skew ", skew,
                      ": give a share of tokens from 0 to 1 (0.5), the largest load over the mean (4x), or hot");
  moe.moe_router_selection = ratio ? "zipf" : "skew";
  (ratio ? moe.moe_router_imbalance : moe.moe_router_skew) = *value;
}

}  // namespace witan::cli
