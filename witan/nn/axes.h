// The axes along which ranks share the work of a model, with the groups in which a rank meets the others.
#pragma once

#include <cstdint>
#include <memory>

#include "witan/comm/group.h"

namespace witan {

namespace ops {
class Fp8Rounds;  // ops/fp8/fp8_kept.h
}

// The exchange by which the ranks of a context axis attend to whole sequences.
enum class ContextExchange : uint8_t {
  automatic,  // heads in layers whose heads the ranks divide, else ring
  ring,       // keys and values travel around a ring, queries stay (ops/attention/ring_attention)
  heads,      // each rank gets some heads of all positions (ops/attention/sequence_heads)
};

// The ranks that divide sequences, and their exchange. Without a group, or with one of a single rank, sequences are
// whole.
struct ContextAxis {
  ContextAxis() = default;
  ContextAxis(Group* ranks, ContextExchange way = ContextExchange::automatic)
      : group(ranks), exchange(way) {}  // implicit

  bool divides() const { return group != nullptr && group->size() > 1; }

  Group* group = nullptr;
  ContextExchange exchange = ContextExchange::automatic;
};

// The expert axis as hosts with an equal number of its ranks each, in order. Without groups rows travel directly to the
// ranks of their experts.
struct ExpertHosts {
  bool any() const { return between != nullptr; }

  Group* between = nullptr;  // the ranks at the same position on every host
  Group* within = nullptr;   // the ranks of this host
};

// Groups must outlive the model. An axis with a null group, or with one of a single rank, divides nothing.
struct ModelAxes {
  ModelAxes(Group& expert_group) : expert(&expert_group) {}  // implicit: experts alone are divided, or nothing is

  Group* expert;                   // experts divided
  ExpertHosts expert_hosts = {};   // over these
  Group* expert_tensor = nullptr;  // one expert's matrices divided
  Group* tensor = nullptr;         // one matrix divided
  Group* context = nullptr;        // one sequence divided
  ContextExchange context_exchange = ContextExchange::automatic;
  bool sequence_parallel = false;  // the residual stream is divided by tokens over `tensor`
  bool tensor_overlap = false;     // exchanges over `tensor` beside computation (model/lanes.h)
  bool values_later = false;       // parameters begin without values (parallel/sharding/unit_store)
  bool loss_parallel = true;       // logits stay divided by vocabulary over `tensor`
  std::shared_ptr<const ops::Fp8Rounds> fp8_rounds = {};  // the rounds of training for which 8-bit weights are kept

  ContextAxis sequences() const { return {context, context_exchange}; }

  static int size(const Group* group) { return group ? group->size() : 1; }
  static int rank(const Group* group) { return group ? group->rank() : 0; }
};

}  // namespace witan
