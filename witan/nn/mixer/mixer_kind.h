// A kind of token mixer as a value with its sizes. Without building the mixer it answers which parameters it has, which
// work and memory it takes, and how ranks divide it, for the model, the planner, generation and converters. Counts
// cover all ranks together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/kernels/attention/rope.h"
#include "witan/nn/axes.h"
#include "witan/nn/layers.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/sequence_state.h"

namespace witan {

struct LoraConfig;  // nn/lora.h
class TokenMixer;   // nn/mixer/token_mixer.h

// The model around a mixer.
struct MixerModel {
  int64_t width = 0;                            // D of the residual stream
  Bias bias = Bias::none;                       // of projections, where the kind has no rule of its own
  NormConfig norm = {};                         // of norms within the mixer
  std::shared_ptr<const LoraConfig> lora = {};  // which matrices have adapters; null: none
  bool recompute_up_projections = false;        // the backward recomputes projections of latents
};

struct MixerCounts {
  int64_t weights = 0;   // matrices, and vectors that Megatron-LM counts with them
  int64_t vectors = 0;   // biases, norms, scalars
  int64_t adapters = 0;  // of low rank
};

// The context-parallel ranks with equal work.
enum class ContextWork : uint8_t {
  all,        // all ranks
  alternate,  // those with even numbers, and those with odd ones
  none,
};

// How context-parallel ranks share a layer's mixing.
struct ContextUse {
  bool exchanges_channels = false;  // each rank gets some channels of whole sequences, and reads Positions::whole_ids
  double ring_channels = 0;         // a token's channels that travel around a ring, as do their gradients
  double exchanged_channels = 0;    // a token's channels that a rank sends to each other rank, forward and backward
  ContextWork work = ContextWork::all;
};

// A size that tensor-parallel ranks divide evenly, and the key that sets it.
using DividedSizes = std::vector<std::pair<const char*, int64_t>>;

class MixerKind {
 public:
  virtual ~MixerKind() = default;

  // A description for a plan's page: "full attention, no RoPE".
  virtual std::string describe() const = 0;
  // The last name of the module's path, part of its parameters' names ("layers.0.attention.q_proj.weight"). Costs are
  // charged to a part of the model of this name.
  virtual const char* name() const { return "attention"; }
  // Null: the layer has none. context's group must outlive the mixer.
  virtual std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                           const ContextAxis& context) const = 0;

  // Counts the parameters that make() builds.
  virtual MixerCounts parameters(const MixerModel& model) const = 0;
  // FLOPs of a token's forward beside 2 for each weight: the average over a training sequence, and those of the token
  // at `position`, counted from 0, in generation.
  virtual double mixing_flops(int64_t seq_length) const = 0;
  virtual double decoding_flops(int64_t position) const = 0;
  // Whether attention kernels do this work.
  virtual bool attends() const { return false; }
  // Multiply-adds of a token in Megatron-LM's formula of FLOPs.
  virtual double megatron_weights(const MixerModel& model, int64_t seq_length) const;
  // Channels of a token that the backward keeps, beside the residual stream's.
  virtual double kept_channels() const = 0;
  // The memory of a sequence in the state from make_state() of an undivided mixer.
  virtual StateBytes state_bytes(const StateSize& size, DType dtype) const = 0;

  // Whether the state is a cache of keys and values, which CacheFormat::fp8 concerns.
  virtual bool caches_keys() const { return false; }
  // The reason why the state cannot have this format, as the end of a sentence about the key that asks for it; empty if
  // it can, or if the format does not concern it.
  virtual std::string cache_refusal(const CacheFormat& /*format*/, const MixerModel& /*model*/) const { return ""; }

  // Sizes that tensor-parallel ranks divide evenly.
  virtual DividedSizes tensor_sizes() const { return {}; }
  // The reason why this number of tensor-parallel ranks does not work although it divides these sizes, as the beginning
  // of a sentence that ends with numbers that work; empty if it works.
  virtual std::string tensor_refusal(int64_t /*ranks*/) const { return ""; }
  // Whether tensor-parallel ranks add up squares of heads for norms.
  virtual bool sums_over_tensor_ranks() const { return false; }
  // The key that prevents tensor-parallel exchanges beside this mixer (model/lanes.h), a literal; empty if they can
  // run.
  virtual std::string_view key_against_lanes() const { return "mixers"; }

  // `tensor`: the number of ranks that divide channels. `context`: the number that divide sequences.
  virtual ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const = 0;
  // Whether these context-parallel ranks can exchange channels, and the most that can.
  virtual bool context_ranks_divide(int64_t /*tensor*/, int64_t /*context*/) const { return true; }
  virtual int64_t most_context_ranks(int64_t /*tensor*/) const { return 1; }
  // A description of the channels that they exchange, "8 heads in 2 query groups"; empty if they exchange none.
  virtual std::string context_parts(int64_t /*tensor*/) const { return ""; }
  // The reason why sequences cannot be divided in this way, as the beginning of a sentence that ends with the advice to
  // set context_parallel_size to sizes that work; empty if they can. parallel/context_heads checks attention's numbers
  // of heads.
  virtual std::string context_refusal(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t /*context*/) const {
    return "";
  }

  // The angles that the mixer reads from Positions::tables, in training or in generation; null: none.
  virtual const kernels::RopeArgs* shared_rotation(bool /*generation*/) const { return nullptr; }
  // The number of the value embedding, from 1 on, whose rows forward() reads; 0: none.
  virtual int64_t value_embedding() const { return 0; }
  // The number of query heads whose logits QK-clip bounds (TokenMixer::clipped_logits); 0: none.
  virtual int64_t logit_heads() const { return 0; }

 protected:
  MixerKind() = default;
  MixerKind(const MixerKind&) = default;
  MixerKind& operator=(const MixerKind&) = default;
  MixerKind(MixerKind&&) = default;
  MixerKind& operator=(MixerKind&&) = default;
};

}  // namespace witan
