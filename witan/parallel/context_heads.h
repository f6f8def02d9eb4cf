// The heads, or other channels, that context-parallel ranks may exchange (cp_comm_type = a2a), as a model and its
// layout have them.
#pragma once

#include <string>
#include <vector>

#include "witan/model/config.h"
#include "witan/parallel/config.h"

namespace witan {

class ContextHeads {
 public:
  ContextHeads(const ModelConfig& model, const ParallelConfig& parallel);

  // Whether so many context-parallel ranks can each attend with some of them.
  bool divide(int64_t ranks) const;
  // Throws ConfigError where ranks are to exchange heads that they do not divide, naming the numbers of ranks that do.
  void validate(int64_t ranks) const;
  std::string text() const;  // "8 heads in 2 query groups of a tensor-parallel rank"

 private:
  const MixerKind& first_divided() const;  // the layers' first kind that has parts

  std::vector<LayerSpec> layers_;
  int64_t tensor_;
};

}  // namespace witan
