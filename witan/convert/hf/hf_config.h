// A model's configuration between Hugging Face's config.json and Witan's keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

struct HfModel {
  const Architecture* architecture = nullptr;
  ModelConfig model;       // dtype is float32, whatever the file says: weights tell
  int64_t positions = 0;   // that it is meant for
  int64_t mtp_layers = 0;  // that predict further tokens, which files may hold or lack: weights tell
  int64_t fp8_block = 0;   // rows and columns of a block with one scale, of weights in float8; 0: there are none
  int packed_bits = 0;     // of an element of weights that compressed-tensors packed, 4 or 8; 0: there are none
};

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
