// The configuration of compressed attention (experimental_attention_variant = dsv4_hybrid), with Megatron-LM's keys
// where it has them.
#pragma once

#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/attention/sparse_config.h"
#include "witan/nn/compressed_attention/compressed_spec.h"

namespace witan {

struct CompressedAttentionConfig {
  static constexpr const char* kVariant = "dsv4_hybrid";  // of experimental_attention_variant

  std::string csa_compress_ratios = "none";
  int64_t csa_sparse_ratio = 4;
  int64_t csa_window_size = 128;
  double csa_compress_rotary_base = 160000;
  int64_t o_groups = 8, o_lora_rank = 1024;

  Fields fields();
  // For models with this variant, whose heads `attention` describes, and indexers `sparse`. Throw ConfigError.
  void validate(const AttentionConfig& attention, const SparseAttentionConfig& sparse, int64_t num_layers) const;
  std::vector<CompressedSpec> layers(const AttentionConfig& attention, const SparseAttentionConfig& sparse,
                                     int64_t hidden_size, int64_t num_layers) const;

 private:
  std::vector<int64_t> ratios(int64_t num_layers) const;
};

}  // namespace witan
