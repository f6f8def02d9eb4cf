// Rotary positions in a config.json: rope_parameters, as transformers writes it since v5, or rope_theta and
// rope_scaling before. Source: transformers' modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "witan/convert/config/hf_keys.h"
#include "witan/convert/config/hf_settings.h"
#include "witan/nn/attention/config.h"

namespace witan {

// The rotation of an architecture whose layers all rotate alike. `positions`: max_position_embeddings. `partial`:
// whether its models rotate the share of a head's channels that partial_rotary_factor says; others refuse the key.
// Throws ConfigError.
void read_hf_rope(HfKeys& keys, const HfSettings& to, int64_t positions, bool partial = false);
nlohmann::ordered_json hf_rope(const AttentionConfig& attention);

// The rotations of an architecture such as OLMo 3, whose windowed layers (layer_types = sliding_attention) have their
// own: rope_parameters holds an object for each of the two types. A rope_scaling applies to full_attention only, as in
// transformers before v5, which wrote such files. Throws ConfigError, also if the two types stretch positions
// differently, and for a rope_theta beside these objects, since versions of transformers disagree about its layers.
void read_hf_rope_of_layer_types(HfKeys& keys, const HfSettings& to, int64_t positions,
                                 const std::vector<bool>& windowed);
nlohmann::ordered_json hf_rope_of_layer_types(const AttentionConfig& attention);

}  // namespace witan
