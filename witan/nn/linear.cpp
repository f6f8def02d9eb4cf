#include "witan/nn/linear.h"

#include "witan/ops/linear.h"

namespace witan {

Linear::Linear(const Builder& builder, int64_t in, int64_t out, double std)
    : Module(builder.path), weight_(add_parameter(builder, "weight", {out, in}, {Initialization::Kind::normal, std})) {}

Var Linear::forward(Tape& tape, const Var& x) {
  const ModuleScope scope(tape, *this);
  return ops::linear(tape, x, tape.parameter(weight_), {});
}

}  // namespace witan
