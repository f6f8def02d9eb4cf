// Activations of feed-forward layers by their names in transformers (ACT2FN in activations.py): hidden_act of layers
// with a gate, activation_function of GPT-2's, which have none.
#pragma once

#include <string>

#include "witan/convert/config/hf_keys.h"
#include "witan/convert/config/hf_settings.h"
#include "witan/nn/mlp.h"

namespace witan {

// Sets Witan's keys of the function that `key` names; `otherwise` where it is absent. Throws ConfigError for those that
// Witan does not have.
void read_hf_activation(HfKeys& keys, const HfSettings& to, const char* key, const char* otherwise, bool gated);
// What read_hf_activation() reads as these keys; some other name where there is none.
std::string hf_activation(const MlpConfig& mlp);

}  // namespace witan
