#include "witan/nn/parameter.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "witan/base/rng.h"
#include "witan/base/threads.h"

namespace witan {

ParameterSpec::Part ParameterSpec::part(int expert_ranks, int expert_rank, int cut_ranks, int cut_rank) const {
  Part part = whole();
  if (expert && expert_ranks > 1) {
    require<ShapeError>(shape[0] % expert_ranks == 0, name, ": ", shape[0], " experts cannot be dealt out to ",
                        expert_ranks, " ranks evenly");
    const int64_t count = shape[0] / expert_ranks;
    part = {rows_of(shape, count * expert_rank, count), shape.with(0, count)};
  }
  if (!cut.any() || cut_ranks == 1) return part;
  const int64_t size = shape[cut.dim], pieces = cut.blocks * cut_ranks;
  require<ShapeError>(size % pieces == 0, name, ": dim ", cut.dim, " of ", shape, " cannot be cut into ", cut_ranks,
                      " equal parts", cut.blocks > 1 ? cat(" of each of its ", cut.blocks, " blocks") : "");
  int64_t block = size / cut.blocks;  // elements between two pieces of a rank
  for (int dim = cut.dim + 1; dim < shape.dims(); ++dim) block *= shape[dim];
  return {part.region.divided(block, cut_ranks, cut_rank), part.shape.with(cut.dim, size / cut_ranks)};
}

Parameter::Parameter(Stream& stream, ParameterSpec spec, const ParameterSpec::Part& part, uint64_t seed,
                     TorchRandom* torch, Tensor place)
    : spec_(std::move(spec)),
      region_(part.region),
      value_(place.defined() ? std::move(place) : stream.empty(part.shape, spec_.dtype, MemoryTag::weights)) {
  assert(value_.shape() == part.shape && value_.dtype() == spec_.dtype && value_.contiguous());
  require<ShapeError>(region_.elements() == part.shape.elements() && region_.end() <= spec_.shape.elements(), name(),
                      ": elements ", region_, " of ", spec_.shape, " as ", part.shape);
  if (stream.is_meta()) return;
  const auto kind = spec_.init.kind;
  if (kind == Initialization::Kind::torch_normal || kind == Initialization::Kind::torch_uniform) {
    assert(torch);
    draw(stream, *torch);
  } else {
    initialize(stream, seed);
  }
}

void Parameter::bind_gradient(Tensor gradient) {
  bind_gradient_parts({std::move(gradient)});
}

void Parameter::bind_gradient_parts(std::vector<Tensor> gradients) {
  assert(!gradients.empty());
  for (const Tensor& gradient : gradients) check_gradient(gradient);
  gradients_ = std::move(gradients);
  clear_gradient();
}

void Parameter::bind_head_gradient(Tensor gradient) {
  check_gradient(gradient);
  if (!head_) head_ = std::make_unique<Head>(*this);
  head_->own_gradient = std::move(gradient);
  head_->gradient_written = false;
}

void Parameter::check_gradient(const Tensor& gradient) const {
  require<ShapeError>(gradient.shape() == value_.shape() && gradient.contiguous() && is_floating(gradient.dtype()),
                      name(), ": a gradient is ", value_.shape(), ", floating and contiguous, got ", gradient.dtype(),
                      " ", gradient.shape());
}

void Parameter::initialize(Stream& stream, uint64_t seed) {
  const Philox rng(seed, Philox::stream_of(name()));
  constexpr int64_t kGrain = 1 << 14;
  dispatch_floating(value_.dtype(), [&]<class T>() {
    // Elements [from, from + count), to values[0 … count).
    const auto fill = [&](T* values, int64_t from, int64_t count) {
      stream.pool().for_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double value = spec_.init.kind == Initialization::Kind::ones ? 1.0 : 0.0;
          if (spec_.init.kind == Initialization::Kind::normal)
            value = rng.normal(static_cast<uint64_t>(region_.global(from + i))) * spec_.init.std;
          values[i] = T(value);
        }
      });
    };
    if (!stream.is_cuda()) return fill(value_.data<T>(), 0, value_.elements());
    // On the host, so that a run begins with the same bits on every device.
    constexpr int64_t kPiece = 1 << 24;
    std::vector<T> piece(static_cast<size_t>(std::min(value_.elements(), kPiece)));
    for (int64_t from = 0; from < value_.elements(); from += kPiece) {
      const int64_t count = std::min(kPiece, value_.elements() - from);
      fill(piece.data(), from, count);
      stream.write(value_.reshape({value_.elements()}).narrow(0, from, count), piece.data());
    }
  });
}

void Parameter::draw(Stream& stream, TorchRandom& random) {
  const int64_t all = spec_.shape.elements();
  dispatch_floating(value_.dtype(), [&]<class T>() {
    std::vector<T> staged(stream.is_cuda() ? static_cast<size_t>(elements()) : 0);
    T* to = stream.is_cuda() ? staged.data() : value_.data<T>();
    const auto keep = [&](int64_t first, std::span<const float> values) {
      const Region drawn(first, static_cast<int64_t>(values.size()));
      for_overlaps(drawn, region_, [&](int64_t from, int64_t mine, int64_t count) {
        for (int64_t i = 0; i < count; ++i) to[mine + i] = T(values[static_cast<size_t>(from + i)]);
      });
    };
    if (spec_.init.kind == Initialization::Kind::torch_normal)
      random.normal(all, keep);
    else
      random.uniform(all, 1 / std::sqrt(static_cast<double>(spec_.init.fan_in)), keep);
    if (stream.is_cuda()) stream.write(value_, staged.data());
  });
}

}  // namespace witan
