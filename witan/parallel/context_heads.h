// The heads, or other channels, that context-parallel ranks exchange (cp_comm_type = a2a) in a given model and layout.
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
  std::string text() const;  // "8 heads in 2 query groups of a tensor-parallel rank"

 private:
  const MixerKind& first_divided() const;  // the first mixer kind that has heads to exchange

  std::vector<LayerSpec> layers_;
  int64_t tensor_;
};

}  // namespace witan
