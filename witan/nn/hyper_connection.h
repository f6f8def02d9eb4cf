// Manifold-constrained hyper-connections (mHC, arXiv:2512.24880): the weights by which a half of a block, or the head,
// reads parallel residual streams and writes to them (ops/residual/streams.h).
#pragma once

#include "witan/base/config/fields.h"
#include "witan/nn/module.h"
#include "witan/ops/residual/streams.h"

namespace witan {

// The residual streams of a model, with Megatron-LM's keys.
struct ResidualStreamsConfig {
  int64_t num_residual_streams = 1;
  int64_t mhc_sinkhorn_iterations = 20;
  double mhc_epsilon = 1e-6;
  double mhc_init_gating_factor = 0.01;

  Fields fields();
  bool any() const { return num_residual_streams > 1; }
  kernels::StreamMixing mixing() const { return {num_residual_streams, mhc_sinkhorn_iterations, mhc_epsilon}; }
  // The number of parameters of a half of a block, or of the head, of a model of this width; 0 unless any().
  int64_t half_parameters(int64_t width) const;
  int64_t head_parameters(int64_t width) const;
};

class HyperConnection : public Module {
 public:
  enum class Place : uint8_t { half, head };  // a head only reads the streams

  // width: channels of one stream   norm_epsilon: of the norm of all streams before they are projected
  HyperConnection(const Builder& builder, const ResidualStreamsConfig& config, int64_t width, Place place,
                  double norm_epsilon);

  // x [.., n D] -> y [.., D], and the weights for ops::write_streams() unless this is the head's.
  ops::ReadStreams read(Tape& tape, const Var& x);

 private:
  kernels::StreamMixing mixing_;
  double norm_epsilon_;
  Parameter *fn_, *base_, *scale_;
};

}  // namespace witan
