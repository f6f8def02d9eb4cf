#include "witan/ops/shape/batch_halves.h"

#include <vector>

namespace witan::ops {
namespace {

std::array<Tensor, 2> halves_of(const Tensor& x) {
  const int64_t rows = x.size(0) / 2;
  return {x.narrow(0, 0, rows), x.narrow(0, rows, rows)};
}

}  // namespace

std::array<Var, 2> split_batch(Tape& tape, const Var& x) {
  require<ShapeError>(x.shape().dims() > 0 && x.size(0) % 2 == 0 && x.value().contiguous(),
                      "split_batch: x must be contiguous and have an even number of rows, got ", x.shape());
  const auto [first, last] = halves_of(x.value());
  const auto vars = tape.record(
      "split_batch", std::vector{first, last}, {x},
      [x = tape.slot(x), shape = x.shape(), dtype = x.dtype()](Backward& b, const std::vector<Tensor>& gradients) {
        if (!b.wants(x)) return;
        const Tensor dx = b.stream().empty(shape, dtype);
        const std::array<Tensor, 2> to = halves_of(dx);
        for (size_t i = 0; i < to.size(); ++i)
          if (gradients[i].defined())
            b.stream().copy(to[i], gradients[i]);
          else
            b.stream().zero(to[i]);
        b.add(x, dx);
      });
  return {vars[0], vars[1]};
}

Var join_batch(Tape& tape, const std::array<Var, 2>& halves) {
  const auto& [first, last] = halves;
  const bool contiguous = first.value().contiguous() && last.value().contiguous();
  require<ShapeError>(first.shape() == last.shape() && first.dtype() == last.dtype() && contiguous,
                      "join_batch: halves must be alike and contiguous, got ", first.shape(), " and ", last.shape());
  const Tensor y = tape.stream().empty(first.shape().with(0, 2 * first.size(0)), first.dtype());
  const std::array<Tensor, 2> to = halves_of(y);
  for (size_t i = 0; i < to.size(); ++i) tape.stream().copy(to[i], halves[i].value());
  return tape.record("join_batch", y, {first, last},
                     [slots = std::array{tape.slot(first), tape.slot(last)}](Backward& b, const Tensor& dy) {
                       const std::array<Tensor, 2> parts = halves_of(dy);
                       for (size_t i = 0; i < parts.size(); ++i) b.add(slots[i], parts[i]);
                     });
}

}  // namespace witan::ops
