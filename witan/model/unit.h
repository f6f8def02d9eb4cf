// The units of a model: what is sharded, gathered, bucketed and recomputed together. They are declared by the model
// (Transformer::units) and numbered alike on all pipeline stages; ParameterSpec::unit is a parameter's number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/nn/module.h"

namespace witan {

struct Unit {
  enum class Kind : uint8_t {
    embedding,  // of tokens and of positions; on the last pipeline stage the head's copy of a tied one
    block,
    head,  // what is behind the blocks: the last norm and, unless it is tied to the embedding, the head
  };

  Kind kind;
  int number;        // in the whole model
  std::string name;  // "embedding", "layers.3", "head"
  int chunk;         // of the layers of its pipeline stage
  std::vector<Module*> modules = {};
  std::vector<Parameter*> parameters = {};  // the modules', in the model's order
  std::vector<Buffer*> buffers = {};

  bool is_block() const { return kind == Kind::block; }
};

// All units' parameters: the model's, in its order.
std::vector<Parameter*> parameters_of(const std::vector<Unit>& units);

}  // namespace witan
