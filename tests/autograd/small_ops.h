// Minimal ops for tests of the tape, written as plain loops.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/rank.h"
#include "witan/autograd/tape.h"

namespace witan::testing {

// y[i] = f(a[i], b[i]) in the accumulator dtype
template <class F>
Tensor zip(Stream& stream, const Tensor& a, const Tensor& b, const F& f) {
  const Tensor y = stream.empty_like(a);
  dispatch_floating(a.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < y.elements(); ++i) y.data<T>()[i] = T(f(A(a.data<T>()[i]), A(b.data<T>()[i])));
  });
  return y;
}

// factor * x: saves nothing
inline Var times(Tape& tape, const Var& x, float factor) {
  const auto scaled = [factor](Stream& stream, const Tensor& in) {
    return zip(stream, in, in, [factor](auto a, auto) { return a * factor; });
  };
  return tape.record("times", scaled(tape.stream(), x.value()), {x},
                     [x = tape.slot(x), scaled](Backward& b, const Tensor& dy) { b.add(x, scaled(b.stream(), dy)); });
}

// a[i] * b[i]: saves both
inline Var multiply(Tape& tape, const Var& a, const Var& b) {
  const auto product = [](auto l, auto r) { return l * r; };
  return tape.record("multiply", zip(tape.stream(), a.value(), b.value(), product), {a, b},
                     [a = tape.save(a), b = tape.save(b), product](Backward& back, const Tensor& dy) {
                       if (back.wants(a)) back.add(a, zip(back.stream(), dy, back.value(b), product));
                       if (back.wants(b)) back.add(b, zip(back.stream(), dy, back.value(a), product));
                     });
}

// x[i]^2: saves x
inline Var square(Tape& tape, const Var& x) {
  return multiply(tape, x, x);
}

// a + b: saves nothing and passes one gradient to both
inline Var plus(Tape& tape, const Var& a, const Var& b) {
  return tape.record("plus", zip(tape.stream(), a.value(), b.value(), [](auto l, auto r) { return l + r; }), {a, b},
                     [a = tape.slot(a), b = tape.slot(b)](Backward& back, const Tensor& dy) {
                       back.add(a, dy);
                       back.add(b, dy);
                     });
}

// x [T, D], w [F, D] -> [T, F]: y = x w^T.  float32 only.
inline Var linear(Tape& tape, const Var& x, const Var& w) {
  const int64_t T = x.size(0), D = x.size(1), F = w.size(0);
  const Tensor y = tape.stream().zeros({T, F}, DType::f32);
  const auto each = [T, D, F](const auto& body) {
    for (int64_t t = 0; t < T; ++t)
      for (int64_t f = 0; f < F; ++f)
        for (int64_t d = 0; d < D; ++d) body(t * F + f, t * D + d, f * D + d);
  };
  const float *in = x.value().data<float>(), *weight = w.value().data<float>();
  each([&, out = y.data<float>()](int64_t i, int64_t j, int64_t k) { out[i] += in[j] * weight[k]; });
  return tape.record("linear", y, {x, w}, [x = tape.save(x), w = tape.save(w), each](Backward& b, const Tensor& dy) {
    const Tensor xs = b.value(x), ws = b.value(w);
    const Tensor dx = b.stream().zeros(xs.shape(), DType::f32), dw = b.stream().zeros(ws.shape(), DType::f32);
    each([&](int64_t i, int64_t j, int64_t k) {
      dx.data<float>()[j] += dy.data<float>()[i] * ws.data<float>()[k];
      dw.data<float>()[k] += dy.data<float>()[i] * xs.data<float>()[j];
    });
    b.add(x, dx);
    b.add(w, dw);
  });
}

// A parameter that reports when its gradient is ready.
struct LoudLeaf : Leaf {
  LoudLeaf(
      Tensor initial, Tensor gradient_buffer, std::function<void()> on_ready = [] {})
      : value_(std::move(initial)), gradient_(std::move(gradient_buffer)), ready_(std::move(on_ready)) {}
  const Tensor& value() override { return value_; }
  Tensor& gradient() override { return gradient_; }
  void on_gradient_ready() override {
    ++ready;
    ready_();
  }
  int ready = 0;

 private:
  Tensor value_, gradient_;
  std::function<void()> ready_;
};

inline std::unique_ptr<LoudLeaf> leaf(
    Rank& rank, const Shape& shape, const char* name, std::function<void()> on_ready = [] {}) {
  return std::make_unique<LoudLeaf>(rank.normal(shape, DType::f32, name), rank.poisoned(shape, DType::f32),
                                    std::move(on_ready));
}

}  // namespace witan::testing
