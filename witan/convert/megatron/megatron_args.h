// The arguments of Megatron-LM's training program, which its checkpoints carry, and Witan's configuration of a model.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "witan/convert/megatron/megatron_pickle.h"
#include "witan/model/config.h"

namespace witan {

using MegatronArguments = std::map<std::string_view, const PickleValue*>;

struct MegatronModel {
  ModelConfig model;  // of float32 and without words: tensors tell
  int64_t positions = 0;
};

// What the arguments say of the model, untrusted. Throws ConfigError naming argument, value and reason for what Witan's
// keys cannot say.
MegatronModel read_megatron_arguments(const MegatronArguments& arguments, const std::string& where);

// A value of an argument; monostate is None.
using MegatronValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>>;

// Arguments that read as this model of so many positions. Throws ConfigError naming what Megatron-LM has no argument
// for.
std::vector<std::pair<std::string, MegatronValue>> write_megatron_arguments(const ModelConfig& model,
                                                                            int64_t positions);

}  // namespace witan
