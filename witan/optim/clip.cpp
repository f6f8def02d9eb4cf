#include "witan/optim/clip.h"

#include <array>
#include <cmath>

#include "witan/kernels/optimizer.h"

namespace witan {
namespace {

// [pieces, elements of each]
Shape pieces(const Parameter& parameter) {
  const Shape& local = parameter.value().shape();
  const int64_t count = parameter.spec().expert ? local[0] : 1;
  return {count, count == 0 ? 0 : local.elements() / count};
}

}  // namespace

int64_t chunks_of(const Parameter& parameter) {
  const Shape shape = pieces(parameter);
  return shape[0] * kernels::chunks_of(shape[1]);
}

kernels::SquareSumsItem square_sums_of(const Parameter& parameter, const Tensor& tensor, int64_t first_row) {
  return {tensor.reshape(pieces(parameter)), first_row};
}

void clip(Stream& stream, const StepState& step, const Tensor& total, double max_norm) {
  kernels::clip_by_norm(stream, step.tensor(), total, max_norm);
}

Norm2 read_norm(Stream& stream, const Tensor& total) {
  std::array<double, 2> sums{};
  stream.read(sums.data(), total);
  return {std::sqrt(sums[0]), sums[1]};
}

}  // namespace witan
