#include "witan/cli/bench/skew.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "witan/cli/args/options.h"

namespace witan::cli {
namespace {

// Of the text as a whole.
std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

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
