#include "witan/nn/parameter.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "witan/base/rng.h"
#include "witan/base/threads.h"

namespace witan {

Parameter::Parameter(Stream& stream, ParameterSpec spec, int64_t begin, int64_t count, uint64_t seed,
                     TorchRandom* torch, Tensor place)
    : spec_(std::move(spec)),
      begin_(begin),
      value_(place.defined() ? std::move(place)
                             : stream.empty(spec_.shape.with(0, count), spec_.dtype, MemoryTag::weights)) {
  assert(value_.shape() == spec_.shape.with(0, count) && value_.dtype() == spec_.dtype && value_.contiguous());
  require<ShapeError>(begin >= 0 && begin + count <= spec_.shape[0], name(), ": rows [", begin, ", ", begin + count,
                      ") of ", spec_.shape);
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
  for (const Tensor& gradient : gradients)
    require<ShapeError>(gradient.shape() == value_.shape() && gradient.contiguous() && is_floating(gradient.dtype()),
                        name(), ": a gradient is ", value_.shape(), ", floating and contiguous, got ", gradient.dtype(),
                        " ", gradient.shape());
  gradients_ = std::move(gradients);
  clear_gradient();
}

void Parameter::initialize(Stream& stream, uint64_t seed) {
  const Philox rng(seed, Philox::stream_of(name()));
  constexpr int64_t kGrain = 1 << 14;
  dispatch_floating(value_.dtype(), [&]<class T>() {
    // Elements [from, from + count), to values[0 … count).
    const auto fill = [&](T* values, int64_t from, int64_t count) {
      stream.pool().for_ranges(count, kGrain, [&, first = first_element() + from](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double value = spec_.init.kind == Initialization::Kind::ones ? 1.0 : 0.0;
          if (spec_.init.kind == Initialization::Kind::normal)
            value = rng.normal(static_cast<uint64_t>(first + i)) * spec_.init.std;
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
  const int64_t mine = first_element(), end = mine + elements(), all = spec_.shape.elements();
  dispatch_floating(value_.dtype(), [&]<class T>() {
    std::vector<T> staged(stream.is_cuda() ? static_cast<size_t>(elements()) : 0);
    T* to = stream.is_cuda() ? staged.data() : value_.data<T>();
    const auto keep = [&](int64_t first, std::span<const float> values) {
      const int64_t last = first + static_cast<int64_t>(values.size());
      for (int64_t i = std::max(first, mine); i < std::min(last, end); ++i)
        to[i - mine] = T(values[static_cast<size_t>(i - first)]);
    };
    if (spec_.init.kind == Initialization::Kind::torch_normal)
      random.normal(all, keep);
    else
      random.uniform(all, 1 / std::sqrt(static_cast<double>(spec_.init.fan_in)), keep);
    if (stream.is_cuda()) stream.write(value_, staged.data());
  });
}

}  // namespace witan
