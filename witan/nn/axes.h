// Along which axes a rank shares the work of a model, with the groups that it meets the other ranks in.
#pragma once

#include <memory>

#include "witan/comm/group.h"

namespace witan {

namespace ops {
class Fp8Rounds;  // ops/fp8_kept.h
}

// Groups must outlive the model. A null group, or one of a single rank: that axis divides nothing.
struct ModelAxes {
  ModelAxes(Group& expert_group) : expert(&expert_group) {}  // implicit: experts alone are divided, or nothing is

  Group* expert;                   // experts divided
  Group* expert_tensor = nullptr;  // one expert's matrices divided
  Group* tensor = nullptr;         // one matrix divided
  Group* context = nullptr;        // one sequence divided
  bool sequence_parallel = false;  // the residual stream is divided by tokens over `tensor`
  bool values_later = false;       // parameters begin without values (parallel/sharding/unit_store)
  bool loss_parallel = true;       // logits stay divided by vocabulary over `tensor`
  std::shared_ptr<const ops::Fp8Rounds> fp8_rounds = {};  // of who trains: while which weights in e4m3 are kept

  static int size(const Group* group) { return group ? group->size() : 1; }
  static int rank(const Group* group) { return group ? group->rank() : 0; }
};

}  // namespace witan
