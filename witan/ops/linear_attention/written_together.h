// Gradients of several parameters that one kernel writes in one call.
#pragma once

#include <initializer_list>
#include <span>

#include "witan/autograd/tape.h"

namespace witan::ops {

// The gradient of `of`, and the kernel's arguments for its buffer, which stay as they are if it is not wanted.
struct WrittenGradient {
  const Saved& of;
  Tensor& to;
  Write& how;
};

// Calls run() once, within the writes of all of them that are wanted.
template <class Run>
void write_together(Backward& b, std::span<const WrittenGradient> gradients, const Run& run) {
  if (gradients.empty()) return run();
  const WrittenGradient& first = gradients.front();
  const auto rest = [&] { write_together(b, gradients.subspan(1), run); };
  if (!b.wants(first.of)) return rest();
  b.write(first.of, [&](const Tensor& gradient, Write how) {
    first.to = gradient, first.how = how;
    rest();
  });
}
template <class Run>
void write_together(Backward& b, std::initializer_list<WrittenGradient> gradients, const Run& run) {
  write_together(b, std::span<const WrittenGradient>(gradients.begin(), gradients.size()), run);
}

}  // namespace witan::ops
