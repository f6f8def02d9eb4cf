#include <algorithm>
#include <string_view>
#include <utility>

#include "witan/base/text.h"
#include "witan/convert/config/hf_model.h"

namespace witan {
namespace {

enum class Function : uint8_t { silu, gelu, gelu_tanh, quick_gelu, squared_relu };

constexpr double kQuickGelu = 1.702;  // x sigmoid(1.702 x)

// Several names are one function. The first of each is the one that is written for layers with a gate.
constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"silu", Function::silu},
    {"swish", Function::silu},
    {"gelu", Function::gelu},
    {"gelu_python", Function::gelu},
    {"gelu_pytorch_tanh", Function::gelu_tanh},
    {"gelu_new", Function::gelu_tanh},
    {"gelu_fast", Function::gelu_tanh},
    {"gelu_accurate", Function::gelu_tanh},
    {"gelu_python_tanh", Function::gelu_tanh},
    {"quick_gelu", Function::quick_gelu},
    {"relu2", Function::squared_relu},
};

void set_gated(Function function, const HfSettings& to) {
  if (function == Function::quick_gelu) to.set("glu_activation_scale", kQuickGelu);
  const bool gelu = function == Function::gelu || function == Function::gelu_tanh;
  to.set("swiglu", function == Function::silu || function == Function::quick_gelu);
  to.set("geglu", gelu);
  to.set("squared_reglu", function == Function::squared_relu);
}

void set_plain(Function function, const HfSettings& to) {
  to.set("swiglu", false);
  to.set("silu", function == Function::silu);
  to.set("squared_relu", function == Function::squared_relu);
}

}  // namespace

void read_hf_activation(HfKeys& keys, const HfSettings& to, const char* key, const char* otherwise, bool gated) {
  const std::string name = keys.text(key, otherwise);
  const auto* found = std::ranges::find(kFunctions, name, &std::pair<std::string_view, Function>::first);
  if (found == std::end(kFunctions) || (!gated && found->second == Function::quick_gelu)) {
    std::string known;
    for (const auto& [one, function] : kFunctions)
      if (gated || function != Function::quick_gelu) known += cat(known.empty() ? "" : ", ", one);
    keys.refuse(key, cat("of such functions Witan has ", known));
  }
  gated ? set_gated(found->second, to) : set_plain(found->second, to);
  to.set("gelu_tanh", found->second == Function::gelu_tanh);
}

std::string hf_activation(const MlpConfig& mlp) {
  if (mlp.swiglu) return mlp.glu_activation_scale == kQuickGelu ? "quick_gelu" : "silu";
  if (mlp.silu) return "silu";
  if (mlp.squared_relu || mlp.squared_reglu) return "relu2";
  if (!mlp.gelu_tanh) return "gelu";
  return mlp.geglu ? "gelu_pytorch_tanh" : "gelu_new";
}

}  // namespace witan
