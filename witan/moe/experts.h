// The experts of one rank: E_local MLPs whose weights are stacked along dim 0.
#pragma once

#include "witan/moe/config.h"
#include "witan/moe/dispatch.h"
#include "witan/nn/mlp.h"

namespace witan {

class Experts : public Module {
 public:
  // gate_up_proj [E, 2F, D] (up_proj [E, F, D] without a gate), down_proj [E, D, F]. Ranks of the expert tensor axis
  // have a share of the F each.
  Experts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width);

  // rows [capacity, D], row_weights [capacity] -> [capacity, D], each row times its weight; where F is divided, a
  // summand of that
  Var forward(Tape& tape, const Dispatched& in, const RowGroups& groups, bool rematerialise);

 private:
  Var product(Tape& tape, const Var& rows, const RowGroups& groups, Parameter& weight);
  Var activated(Tape& tape, const Dispatched& in, const RowGroups& groups, bool rematerialise);

  MoeConfig moe_;
  MlpConfig mlp_;
  Parameter &first_, &second_;
};

namespace ops {
// The readable reference of grouped_linear: one expert after the other, each a plain matrix product over its rows. It
// reads the counts on the host.
Var sequential_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w);
}  // namespace ops

}  // namespace witan
