// Reads and writes a model's configuration as Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/architecture.h"

namespace witan {

// Values of the keys that a config.json lacks: those that Witan reads and whose default is not null, by the
// architecture's configuration class in transformers 5.24 (tests/golden/convert/defaults.json).
Json hf_defaults(const Architecture& architecture);

// Reads an untrusted config.json, ignoring keys that do not change what a model computes. Throws ConfigError for an
// unknown model_type, and for a key that Witan does not know or whose value it cannot represent, naming key, value and
// reason; CorruptionError and CheckpointError for text that is not a configuration.
HfModel read_hf_config(std::string_view text, const std::string& where);

// Returns the text of a config.json that reads as this model with a context of `positions`. Throws ConfigError naming
// the key whose value the architecture cannot have. `dtype` is the weights' dtype by its name in Python.
std::string write_hf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                            std::string_view dtype);

// Returns the model that a config.json of this architecture gives: the same one if write_hf_config() can write it, and
// otherwise a different one. Throws ConfigError if there is no such model.
ModelConfig as_architecture(const Architecture& architecture, const ModelConfig& model, int64_t positions);

}  // namespace witan
