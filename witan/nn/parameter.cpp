#include "witan/nn/parameter.h"

#include <cassert>

#include "witan/base/rng.h"
#include "witan/base/threads.h"

namespace witan {

Parameter::Parameter(Stream& stream, ParameterSpec spec, int64_t begin, int64_t count, uint64_t seed)
    : spec_(std::move(spec)),
      begin_(begin),
      value_(stream.empty(spec_.shape.with(0, count), spec_.dtype, MemoryTag::weights)) {
  require<ShapeError>(begin >= 0 && begin + count <= spec_.shape[0], name(), ": rows [", begin, ", ", begin + count,
                      ") of ", spec_.shape);
  if (!stream.is_meta()) initialize(stream, seed);
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
    T* values = value_.data<T>();
    stream.pool().for_ranges(value_.elements(), kGrain, [&, first = first_element()](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double value = spec_.init.kind == Initialization::Kind::ones ? 1.0 : 0.0;
        if (spec_.init.kind == Initialization::Kind::normal)
          value = rng.normal(static_cast<uint64_t>(first + i)) * spec_.init.std;
        values[i] = T(value);
      }
    });
  });
}

}  // namespace witan
