// The heads, or other channels, that context-parallel ranks exchange in a given model and layout if cp_comm_type = a2a.
#pragma once

#include <string>
#include <vector>

#include "witan/model/config.h"
#include "witan/parallel/config.h"

namespace witan {

class ContextHeads {
 public:
  ContextHeads(const ModelConfig& model, const ParallelConfig& parallel);

  // Whether this many context-parallel ranks can each attend with an equal share of the heads.
  bool divide(int64_t ranks) const;
  // Throws ConfigError if ranks must exchange heads that they cannot divide, and names the numbers of ranks that can.
  void validate(int64_t ranks) const;
  // The heads of a layer that decides whether these ranks divide all, "8 heads in 2 query groups of a tensor-parallel
  // rank"; empty if no layer has heads to exchange.
  std::string text(int64_t ranks) const;

 private:
  // The first mixer kind with heads that these ranks divide, or do not divide; null: none.
  const MixerKind* first_of(bool divided, int64_t ranks) const;
  std::string text_of(const MixerKind& kind) const;

  std::vector<LayerSpec> layers_;
  int64_t tensor_;
};

}  // namespace witan
