#include "witan/optim/clip.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

// Elements that are cut into chunks together: an expert's, or the largest local part of any rank.
int64_t piece_of(const Parameter& parameter) {
  const Shape& local = parameter.shape();
  if (!parameter.spec().expert) return parameter.most_elements();
  return local[0] == 0 ? 0 : local.elements() / local[0];
}

}  // namespace

int64_t chunks_before(const Parameter& parameter, int64_t element) {
  const int64_t piece = piece_of(parameter);
  return piece == 0 ? 0 : element / piece * kernels::chunks_of(piece) + kernels::chunks_of(element % piece);
}

void add_square_sums(std::vector<kernels::SquareSumsItem>& items, const Parameter& parameter, const Tensor& tensor,
                     int64_t first, int64_t first_row) {
  const int64_t piece = piece_of(parameter);
  for (int64_t done = 0, at = first;
       done < tensor.elements();) {  // the rest of a piece, whole pieces, the start of one
    const int64_t begun = at % piece, left = tensor.elements() - done, whole = begun == 0 ? left / piece : 0;
    const Shape shape = whole > 0 ? Shape{whole, piece} : Shape{1, std::min(piece - begun, left)};
    items.push_back({tensor.narrow(0, done, shape.elements()).reshape(shape), first_row});
    first_row += shape[0] * kernels::chunks_of(shape[1]);
    done += shape.elements();
    at += shape.elements();
  }
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
