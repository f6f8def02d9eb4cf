#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/convert/models/architecture.h"

namespace witan {
namespace {

// An export that is told no architecture takes the first that can be the model. These come first, in this order, so
// that a model is exported as the plainest or best-known one; others follow by name.
constexpr std::string_view kTriedFirst[] = {"llama",       "qwen3",       "mistral", "qwen2", "mixtral",
                                            "qwen3_moe",   "olmoe",       "olmo2",   "olmo3", "gpt_oss",
                                            "deepseek_v2", "deepseek_v3", "phi3",    "gpt2"};

// Types of which Witan lacks a part.
constexpr std::pair<std::string_view, std::string_view> kLacking[] = {
    {"apertus", "it has no xIELU, the activation of their MLPs"},
    {"cohere2_moe", "it computes the MLP after attention, not beside it"},
    {"ernie4_5_moe", "it chooses experts by scores with a bias only where the scores are sigmoids, not a softmax"},
    {"granitemoe", "it has no multipliers of the embedding and of what is added to the residual stream"},
    {"granitemoeshared", "it has no multipliers of the embedding and of what is added to the residual stream"},
    {"hunyuan_v1_moe", "it normalises queries and keys before they rotate, not after"},
    {"llama4_text", "it has no attention in chunks, and no temperatures that grow with positions"},
    {"mimo_v2_flash", "its layers have heads of one size, whether they have a window or not"},
    {"mistral4", "it has no temperatures that grow with positions"},
    {"phimoe", "it has no SparseMixer, which routes their tokens"},
};

std::vector<Architecture> all_architectures() {
  std::vector<Architecture> all;
  for (models::Family* family : models::families()) std::ranges::move(family(), std::back_inserter(all));
  std::ranges::sort(all, {}, [](const Architecture& one) {
    return std::pair(std::ranges::find(kTriedFirst, one.model_type), one.model_type);
  });
  return all;
}

}  // namespace

std::span<const Architecture> architectures() {
  static const std::vector<Architecture> all = all_architectures();
  return all;
}

std::string_view lacking_part(std::string_view model_type) {
  const auto* found = std::ranges::find(kLacking, model_type, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kLacking) ? std::string_view() : found->second;
}

const Architecture* find_architecture(std::string_view model_type) {
  const auto all = architectures();
  const auto found = std::ranges::find_if(all, [&](const Architecture& one) {
    return one.model_type == model_type || std::ranges::find(one.other_types, model_type) != one.other_types.end();
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace witan
