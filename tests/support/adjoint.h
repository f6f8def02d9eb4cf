// Adjoints of linear ops over groups: <A x, g> = <x, A^T g>, the inner products taken over the global tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/thread_world.h"
#include "witan/autograd/tape.h"
#include "witan/comm/placement.h"

namespace witan::testing {

// The values of input and output, and of their gradients, on every rank.
struct AdjointRun {
  explicit AdjointRun(int ranks) : x(static_cast<size_t>(ranks)), dx(x), y(x), dy(x) {}
  std::vector<std::vector<double>> x, dx, y, dy;  // [rank][element]
};

// The inner product of a global tensor with its gradient; placements of both are given. A tensor that all ranks hold
// completely, gradient included, counts once; otherwise the ranks' products are parts of a sum.
inline double inner_product(const std::vector<std::vector<double>>& value,
                            const std::vector<std::vector<double>>& gradient, Placement placement) {
  const bool once =
      placement.of_gradient().kind == Placement::Kind::replicate && placement.kind == Placement::Kind::replicate;
  double sum = 0;
  for (size_t rank = 0; rank < (once ? 1 : value.size()); ++rank)
    for (size_t i = 0; i < value[rank].size(); ++i) sum += value[rank][i] * gradient[rank][i];
  return sum;
}

// A rank's part of a global tensor with this placement: equal on all ranks or not, as the placement requires.
inline Tensor placed_normal(ThreadRank& rank, const Shape& shape, Placement placement, const std::string& name) {
  const bool same = placement.kind == Placement::Kind::replicate;
  return same ? rank.normal(shape, DType::f64, name) : rank.own_normal(shape, DType::f64, name);
}

using GroupOp = std::function<Var(Tape&, const Var&, Group&)>;

// Runs `op`, which records a node called `name`, on an x of this local shape. The test fails unless the adjoint
// identity holds and replicated results are equal on all ranks.
inline AdjointRun check_adjoint(const std::string& name, int ranks, const Shape& local_shape, Placement from,
                                Placement to, const GroupOp& op) {
  SCOPED_TRACE(cat("adjoint of ", name, " from ", from, " to ", to, " on ", ranks, " ranks, local ", local_shape));
  AdjointRun run(ranks);
  on_ranks(ranks, [&](ThreadRank& rank) {
    const auto group = rank.everyone();
    Tape tape(rank.stream);
    const Var x = tape.input(placed_normal(rank, local_shape, from, "x"));
    const Var y = op(tape, x, *group);
    const Tensor dy = placed_normal(rank, y.shape(), to.of_gradient(), "dy");
    const auto r = static_cast<size_t>(rank.rank);
    run.x[r] = values(x.value());
    run.y[r] = values(y.value());
    run.dy[r] = values(dy);
    tape.backward({{y, dy}});
    run.dx[r] = values(tape.gradient(x));
  });
  const double forward = inner_product(run.y, run.dy, to), backward = inner_product(run.x, run.dx, from);
  EXPECT_NEAR(forward, backward, 1e-12 * (1 + std::abs(forward)));
  for (size_t r = 1; r < run.x.size(); ++r) {
    if (to.kind == Placement::Kind::replicate) {
      EXPECT_EQ(run.y[r], run.y[0]);
    }
    if (from.of_gradient().kind == Placement::Kind::replicate) {
      EXPECT_EQ(run.dx[r], run.dx[0]);
    }
  }
  return run;
}

}  // namespace witan::testing
