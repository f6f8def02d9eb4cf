#include <algorithm>
#include <iterator>

#include "witan/convert/models/architecture.h"

namespace witan {
namespace {

// An export that is told no architecture takes the first that can be the model. These come first, in this order, so
// that a model is exported as the plainest or best-known one; others follow by name.
constexpr std::string_view kTriedFirst[] = {"llama",       "qwen3",       "mistral", "qwen2", "mixtral",
                                            "qwen3_moe",   "olmoe",       "olmo2",   "olmo3", "gpt_oss",
                                            "deepseek_v2", "deepseek_v3", "phi3",    "gpt2"};

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

const Architecture* find_architecture(std::string_view model_type) {
  const auto all = architectures();
  const auto found = std::ranges::find_if(all, [&](const Architecture& one) {
    return one.model_type == model_type || std::ranges::find(one.other_types, model_type) != one.other_types.end();
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace witan
