#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/convert/models/architecture.h"

namespace witan {
namespace {

// An export without a given architecture uses the first that fits the model. These come first, in this order, so that a
// model is exported as the plainest or best-known one; others follow by name.
constexpr std::string_view kTriedFirst[] = {"llama",       "qwen3",       "mistral", "qwen2", "mixtral",
                                            "qwen3_moe",   "olmoe",       "olmo2",   "olmo3", "gpt_oss",
                                            "deepseek_v2", "deepseek_v3", "phi3",    "gpt2"};

// Types of which Witan lacks a part, by the part.
constexpr std::string_view kBeside = "it computes the MLP after attention, not beside it",
                           kStateSpace = "of state-space layers it has Nemotron-H's and Granite 4's alone",
                           kLightning = "it has no lightning attention",
                           kTemperatures = "it has no temperatures that grow with positions",
                           kAlibi = "it has no biases of attention that grow with distance (ALiBi)";
constexpr std::pair<std::string_view, std::string_view> kLacking[] = {
    {"apertus", "it has no xIELU, the activation of their MLPs"},
    {"bailing_hybrid", kLightning},
    {"bamba", kStateSpace},
    {"bloom", kAlibi},
    {"codegen", kBeside},
    {"cohere", kBeside},
    {"cohere2", kBeside},
    {"cohere2_moe", kBeside},
    {"falcon_h1", kStateSpace},
    {"falcon_mamba", kStateSpace},
    {"gemma2", "it has no cap on the logits of attention"},
    {"gptj", kBeside},
    {"jamba", kStateSpace},
    {"llama4_text", "it has no attention in chunks, and no temperatures that grow with positions"},
    {"mamba", kStateSpace},
    {"mamba2", kStateSpace},
    {"mimo_v2_flash", "of attention sinks it has those of all layers, not of layers with a window alone"},
    {"minimax", kLightning},
    {"ministral3", kTemperatures},
    {"mistral4", kTemperatures},
    {"mpt", kAlibi},
    {"phi", kBeside},
    {"phimoe", "it has no SparseMixer, which routes their tokens"},
    {"recurrent_gemma", "it has no RG-LRU, their recurrent layers"},
    {"rwkv", "it has no RWKV layers"},
    {"xlstm", "it has no xLSTM layers"},
    {"zamba", kStateSpace},
    {"zamba2", kStateSpace},
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
