#include "witan/nn/hyper_connection.h"

namespace witan {
namespace {

int64_t logits_of(int64_t n, HyperConnection::Place place) {
  return place == HyperConnection::Place::head ? n : n * (n + 2);
}

int64_t groups_of(HyperConnection::Place place) {
  return place == HyperConnection::Place::head ? 1 : 3;
}

int64_t parameters_of(const ResidualStreamsConfig& config, int64_t width, HyperConnection::Place place) {
  const int64_t n = config.num_residual_streams;
  return config.any() ? logits_of(n, place) * (n * width + 1) + groups_of(place) : 0;
}

}  // namespace

Fields ResidualStreamsConfig::fields() {
  return {
      Field{"num_residual_streams", &num_residual_streams,
            "Parallel residual streams, joined by manifold-constrained hyper-connections (mHC); 1: the plain sum"}
          .between(1, kernels::kMostStreams),
      Field{"mhc_sinkhorn_iterations", &mhc_sinkhorn_iterations,
            "Normalisations by which mHC makes the matrix that mixes residual streams doubly stochastic"}
          .between(1, kernels::kMostSinkhornIterations),
      Field{"mhc_epsilon", &mhc_epsilon, "mHC: added to weights and sums of the matrix that mixes residual streams"}
          .at_least(0),
      Field{"mhc_init_gating_factor", &mhc_init_gating_factor,
            "mHC: initial factor of what the weights of residual streams take from the token"}
          .at_least(0),
  };
}

int64_t ResidualStreamsConfig::half_parameters(int64_t width) const {
  return parameters_of(*this, width, HyperConnection::Place::half);
}

int64_t ResidualStreamsConfig::head_parameters(int64_t width) const {
  return parameters_of(*this, width, HyperConnection::Place::head);
}

// All weights stay in float32 in 16-bit models: they are few, and the matrix depends on their small differences.
HyperConnection::HyperConnection(const Builder& builder, const ResidualStreamsConfig& config, int64_t width,
                                 Place place, double norm_epsilon)
    : Module(builder.path), mixing_(config.mixing()), norm_epsilon_(norm_epsilon) {
  const int64_t n = config.num_residual_streams, C = logits_of(n, place);
  Builder wide = builder.of_kind(ParameterKind::norms);
  wide.dtype = accumulator(builder.dtype);
  fn_ = &add_parameter(wide, "fn", {C, n * width}, {Initialization::Kind::normal, builder.init_std}, false);
  base_ = &add_parameter(wide, "base", {C}, {Initialization::Kind::zeros}, false);
  scale_ =
      &add_parameter(wide, "scale", {groups_of(place)}, Initialization::constant(config.mhc_init_gating_factor), false);
}

ops::ReadStreams HyperConnection::read(Tape& tape, const Var& x) {
  const ModuleScope scope(tape, *this);
  return ops::read_streams(tape, x, {tape.parameter(*fn_), tape.parameter(*base_), tape.parameter(*scale_)}, mixing_,
                           norm_epsilon_);
}

}  // namespace witan
