#include "witan/kernels/optimizer/gram_newton_schulz.h"

#include <algorithm>
#include <cassert>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan::kernels {
namespace {

constexpr int64_t kTile = 128;          // rows and columns of the GPU's tiles of symmetric products
constexpr double kScaledPasses = 4;     // bytes per element that normalizing reads and writes
constexpr int64_t kTilesAtATime = 132;  // tiles that a Hopper GPU computes at a time, one per multiprocessor

double plain_flops(double small, double large, std::span<const NewtonSchulzStep> steps) {
  return static_cast<double>(steps.size()) * small * small * (4 * large + 2 * small);
}

}  // namespace

int64_t steps_of_gram_run(int64_t element_bytes) {
  return element_bytes == 2 ? 3 : 5;
}

double gram_flops(const GramSizes& sizes, std::span<const NewtonSchulzStep> steps, int64_t longest_run) {
  const auto m = static_cast<double>(sizes.small), n = static_cast<double>(sizes.large);
  const auto count = static_cast<double>(steps.size());
  const auto runs = static_cast<double>((std::ssize(steps) + longest_run - 1) / longest_run);
  const double symmetric =
      runs * n + count * m + 3 * (count - runs) * m;  // 2 m^2 times this: their FLOPs if not symmetric
  return 2 * m * m * (sizes.share * symmetric + runs * n);
}

double hopper_gram_share(int64_t m) {
  const auto across = static_cast<double>((m + kTile - 1) / kTile);
  return (across + 1) / (2 * across);
}

int64_t hopper_gram_batch(int64_t m, int64_t matrices, int64_t most) {
  const int64_t across = (m + kTile - 1) / kTile, tiles = across * (across + 1) / 2;
  // The cost of all batches, in rounds of the GPU's tiles. A batch's last round counts in full, and its launches as
  // one.
  const auto rounds = [&](int64_t n) { return n == 0 ? 0 : 1 + (n * tiles + kTilesAtATime - 1) / kTilesAtATime; };
  const auto cost = [&](int64_t each) { return matrices / each * rounds(each) + rounds(matrices % each); };
  int64_t best = std::min(matrices, most);
  for (int64_t each = best; each > most / 2 && each > 0; --each)
    if (cost(each) < cost(best)) best = each;
  return best;
}

bool suits_hopper_gram(DType dtype, int64_t rows, int64_t columns, std::span<const NewtonSchulzStep> steps) {
  const int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  if (dtype != DType::bf16 || steps.empty() || rows % 8 != 0 || columns % 8 != 0) return false;
  if (std::ranges::any_of(steps, [](const NewtonSchulzStep& step) { return step.c == 0; })) return false;
  return gram_flops({small, large, hopper_gram_share(small)}, steps, steps_of_gram_run(2)) <
         plain_flops(static_cast<double>(small), static_cast<double>(large), steps);
}

bool has_hopper_gram([[maybe_unused]] Stream& stream) {
#if WITAN_CUDA
  if (stream.is_cuda()) return cuda::has_hopper_gram(stream);
#endif
  return true;
}

Tensor hopper_gram_newton_schulz(Stream& stream, const GramTensors& t, const GramArgs& args) {
  const int64_t n = t.x.size(0), rows = t.x.size(1), columns = t.x.size(2), m = std::min(rows, columns);
  assert(t.x.contiguous() && t.other.contiguous() && t.grams.shape() == (Shape{4, n, m, m}));
  assert(t.sums.shape() == (Shape{n * chunks_of(rows * columns), 2}));
  const int64_t longest = steps_of_gram_run(2);
  const auto runs = static_cast<double>((std::ssize(args.steps) + longest - 1) / longest);
  const auto count = static_cast<double>(args.steps.size());
  // Besides X: each step reads R and writes P, and all but a run's last make three more products.
  const Cost cost{
      static_cast<double>(n) * gram_flops({m, std::max(rows, columns), hopper_gram_share(m)}, args.steps, longest),
      static_cast<double>(t.x.elements()) * (kScaledPasses + 6 * runs) +
          static_cast<double>(t.grams.bytes()) / 4 * (2 * count + 9 * (count - runs) + 2 * runs)};
  Tensor result = std::ssize(args.steps) > 0 && static_cast<int64_t>(runs) % 2 == 1 ? t.other : t.x;
  charge(stream, "gram_newton_schulz", cost, [&] {
    if (stream.is_cuda()) WITAN_CALL_CUDA(hopper_gram_newton_schulz, stream, t, args);
  });
  return result;
}

}  // namespace witan::kernels
