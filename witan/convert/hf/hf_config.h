// A model's configuration between Hugging Face's config.json and Witan's keys.
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

// Reads config.json, untrusted. Keys that change nothing of what a model computes are passed over. Throws ConfigError
// for a model_type that Witan does not know, and naming key, value and reason for what Witan's keys cannot say, keys of
// unknown meaning included; CorruptionError and CheckpointError for what is no configuration.
HfModel read_hf_config(std::string_view text, const std::string& where);

// The text of a config.json which reads as this model, meant for so many positions. Throws ConfigError naming the key
// that the architecture cannot have as the model has it. `dtype`: of the weights, by its name in Python.
std::string write_hf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                            std::string_view dtype);

// What a config.json of this architecture makes of the model: its like where write_hf_config() can write it, and else
// another one. Throws ConfigError where there is no such model at all.
ModelConfig as_architecture(const Architecture& architecture, const ModelConfig& model, int64_t positions);

}  // namespace witan
