// The heads that context-parallel ranks may exchange (cp_comm_type = a2a), as a model and its layout have them.
#pragma once

#include <string>

#include "witan/model/config.h"
#include "witan/parallel/config.h"

namespace witan {

class ContextHeads {
 public:
  ContextHeads(const ModelConfig& model, const ParallelConfig& parallel);

  // Whether so many context-parallel ranks can each attend with some of them.
  bool divide(int64_t ranks) const { return ranks_divide_heads(attention_, tensor_, ranks); }
  // Throws ConfigError where ranks are to exchange heads that they do not divide, naming the numbers of ranks that do.
  void validate(int64_t ranks) const;
  std::string text() const;  // "8 heads in 2 query groups of a tensor-parallel rank"

 private:
  AttentionSpec attention_;  // of the layers that have one: all have heads of one number
  int64_t tensor_;
};

}  // namespace witan
