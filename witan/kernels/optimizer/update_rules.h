// The optimizers' updates of one element, with the same expressions on the CPU and on GPUs. Formulas and sources are in
// kernels/optimizer/optimizer.h.
//
// A rule is made from what the step and the configuration say, in float64, and then applied to numbers of the
// accumulator type A: the gradient, what is updated, and kStates numbers of the algorithm's own.
#pragma once

#include <cmath>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan::kernels {

// kernels::adapt_loss_scale().
constexpr void adapt_loss_scale_rule(double* step, double* scaler, const LossScaleArgs& args) {
  const double skip = step[step_value::skip];
  if (skip > 1 || skip < 0) return;
  step[step_value::gradient_scale] /= scaler[loss_scaler::scale];
  if (!args.dynamic) return;
  if (skip != 0) {
    scaler[loss_scaler::growth] = 0;
    scaler[loss_scaler::hysteresis] -= 1;
    const double lower = 0.5 * scaler[loss_scaler::scale];
    if (scaler[loss_scaler::hysteresis] <= 0) scaler[loss_scaler::scale] = lower > args.least ? lower : args.least;
  } else {
    scaler[loss_scaler::growth] += 1;
    if (scaler[loss_scaler::growth] < static_cast<double>(args.window)) return;
    scaler[loss_scaler::growth] = 0;
    scaler[loss_scaler::hysteresis] = static_cast<double>(args.hysteresis);
    scaler[loss_scaler::scale] *= 2;
  }
}

template <class A>
struct AdamWRule {
  static constexpr int kStates = 2;  // m, v
  A scale, beta1, beta2, to_m, to_v, unbias_m, unbias_v, eps, lr;
  A decay;  // of the parameter

  static constexpr AdamWRule make(const double* step, const AdamWArgs& args) {
    const double update = step[step_value::update];
    return {A(step[step_value::gradient_scale]),
            A(args.beta1),
            A(args.beta2),
            A(1 - args.beta1),
            A(1 - args.beta2),
            A(1 / (1 - std::pow(args.beta1, update))),
            A(1 / (1 - std::pow(args.beta2, update))),
            A(args.eps),
            A(step[args.rate]),
            A(0)};
  }
  constexpr void operator()(A gradient, A& p, A* state) const {
    const A g = scale * gradient;
    const A m = beta1 * state[0] + to_m * g, v = beta2 * state[1] + to_v * g * g;
    p -= lr * (m * unbias_m / (std::sqrt(v * unbias_v) + eps) + decay * p);
    state[0] = m;
    state[1] = v;
  }
};

template <class A, bool kMomentum>
struct SgdRule {
  static constexpr int kStates = kMomentum ? 1 : 0;  // momentum
  A scale, momentum, lr;
  A decay;

  static constexpr SgdRule make(const double* step, const SgdArgs& args) {
    return {A(step[step_value::gradient_scale]), A(args.momentum), A(step[args.rate]), A(0)};
  }
  constexpr void operator()(A gradient, A& p, A* state) const {
    A b = scale * gradient + decay * p;
    if constexpr (kMomentum) state[0] = b += momentum * state[0];
    p -= lr * b;
  }
};
template <class A>
using MomentumRule = SgdRule<A, true>;
template <class A>
using DescentRule = SgdRule<A, false>;

template <class A>
struct LionRule {
  static constexpr int kStates = 1;  // m
  A scale, beta1, beta2, to_c, to_m, lr;
  A decay;

  static constexpr LionRule make(const double* step, const LionArgs& args) {
    return {A(step[step_value::gradient_scale]),
            A(args.beta1),
            A(args.beta2),
            A(1 - args.beta1),
            A(1 - args.beta2),
            A(step[args.rate]),
            A(0)};
  }
  constexpr void operator()(A gradient, A& p, A* state) const {
    const A g = scale * gradient, c = beta1 * state[0] + to_c * g;
    p -= lr * (A(c > 0) - A(c < 0) + decay * p);
    state[0] = beta2 * state[0] + to_m * g;
  }
};

template <class A>
struct AdEMAMixRule {
  static constexpr int kStates = 3;  // m, slow, v
  A scale, beta1, beta2, beta3, to_m, to_v, to_slow, unbias_m, unbias_v, alpha, eps, lr;
  A decay;

  static constexpr AdEMAMixRule make(const double* step, const AdEMAMixArgs& args) {
    const double update = step[step_value::update];
    const double done = update < args.warmup ? update / args.warmup : 1;
    const double beta3 = done < 1 ? warm_beta3(args, done) : args.beta3;
    return {A(step[step_value::gradient_scale]),
            A(args.beta1),
            A(args.beta2),
            A(beta3),
            A(1 - args.beta1),
            A(1 - args.beta2),
            A(1 - beta3),
            A(1 / (1 - std::pow(args.beta1, update))),
            A(1 / (1 - std::pow(args.beta2, update))),
            A(done * args.alpha),
            A(args.eps),
            A(step[args.rate]),
            A(0)};
  }
  constexpr void operator()(A gradient, A& p, A* state) const {
    const A g = scale * gradient;
    const A m = beta1 * state[0] + to_m * g, slow = beta3 * state[1] + to_slow * g, v = beta2 * state[2] + to_v * g * g;
    p -= lr * ((m * unbias_m + alpha * slow) / (std::sqrt(v * unbias_v) + eps) + decay * p);
    state[0] = m;
    state[1] = slow;
    state[2] = v;
  }

 private:
  // The beta of which the half-life, log 0.5 / log beta - 1, is `done` of the way from beta1's to beta3's. The original
  // adds 1e-8 to each beta, which lets beta1 be 0.
  static constexpr double warm_beta3(const AdEMAMixArgs& args, double done) {
    const double half = std::log(0.5);
    const double from = half / std::log(args.beta1 + 1e-8) - 1, to = half / std::log(args.beta3 + 1e-8) - 1;
    return std::pow(0.5, 1 / ((1 - done) * from + done * to + 1));
  }
};

}  // namespace witan::kernels
