// A kind of token mixer as a value with its sizes: it answers, without building the mixer, which parameters it has,
// what work and memory it takes, and how ranks divide it. The model, the planner, generation and converters ask it, and
// read no other kind's fields. Counts are of all ranks together.
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
  NormConfig norm = {};                         // of what the kind normalises as the model does
  std::shared_ptr<const LoraConfig> lora = {};  // which matrices have adapters; null: none
  bool recompute_up_projections = false;        // projections of latents are made again in the backward
};

struct MixerCounts {
  int64_t weights = 0;   // of matrices, and of vectors that Megatron-LM counts with them
  int64_t vectors = 0;   // biases, norms, scalars
  int64_t adapters = 0;  // of low rank
};

// Tells which context-parallel ranks have equal work.
enum class ContextWork : uint8_t {
  all,        // all ranks
  alternate,  // those at even places, and those at odd ones
  none,
};

// How context-parallel ranks share a layer's mixing.
struct ContextUse {
  bool exchanges_channels = false;  // each gets whole sequences of some channels, and reads Positions::whole_ids
  double ring_channels = 0;  // of a token, on a rank: travel around a ring, as their gradients do in the accumulator
  double exchanged_channels = 0;  // of a token: a rank sends them to each other rank, forward and backward
  ContextWork work = ContextWork::all;
};

// A size that tensor-parallel ranks divide evenly, and the key that sets it.
using DividedSizes = std::vector<std::pair<const char*, int64_t>>;

class MixerKind {
 public:
  virtual ~MixerKind() = default;

  // For people, as a plan's page lists layers: "full attention, no RoPE".
  virtual std::string describe() const = 0;
  // The last name of the module's path, which begins the names of its parameters in checkpoints:
  // "layers.0.attention.q_proj.weight". Costs are charged to a part of the model of this name.
  virtual const char* name() const { return "attention"; }
  // Null: the layer has none. context's group must outlive the mixer.
  virtual std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                           const ContextAxis& context) const = 0;

  // Counts the parameters that make() builds.
  virtual MixerCounts parameters(const MixerModel& model) const = 0;
  // FLOPs of a token's forward beside 2 for each weight: on average over a sequence that is trained on, and of the
  // token at `position` (from 0 on) of one that is generated.
  virtual double mixing_flops(int64_t seq_length) const = 0;
  virtual double decoding_flops(int64_t position) const = 0;
  // Whether kernels of attention do this work.
  virtual bool attends() const { return false; }
  // Weights that a token meets in Megatron-LM's formula of FLOPs, a product of mixing counted as one.
  virtual double megatron_weights(const MixerModel& model, int64_t seq_length) const;
  // Channels of a token that the backward keeps, beside the residual stream's.
  virtual double kept_channels() const = 0;
  // The memory of a sequence in the state that make_state() of a whole mixer makes.
  virtual StateBytes state_bytes(const StateSize& size, DType dtype) const = 0;

  // Sizes that tensor-parallel ranks divide evenly.
  virtual DividedSizes tensor_sizes() const { return {}; }
  // Says why so many tensor-parallel ranks do not work although they divide these sizes, as the beginning of a sentence
  // that ends with numbers that work; empty: they do.
  virtual std::string tensor_refusal(int64_t /*ranks*/) const { return ""; }
  // Whether they add up squares of heads for norms.
  virtual bool sums_over_tensor_ranks() const { return false; }
  // The key, a literal, because of which tensor-parallel exchanges cannot run beside it (model/lanes.h); empty: they
  // can.
  virtual std::string_view key_against_lanes() const { return "mixers"; }

  // `tensor`: the ranks that divide channels before. `context`: those that divide sequences.
  virtual ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const = 0;
  // Whether context-parallel ranks can exchange channels, and at most how many can.
  virtual bool context_ranks_divide(int64_t /*tensor*/, int64_t /*context*/) const { return true; }
  virtual int64_t most_context_ranks(int64_t /*tensor*/) const { return 1; }
  // Names the channels that they exchange: "8 heads in 2 query groups"; empty: they exchange none.
  virtual std::string context_parts(int64_t /*tensor*/) const { return ""; }
  // Why sequences cannot be divided in this way, with the remedy; empty: they can. Attention's numbers of heads are
  // checked by parallel/context_heads.
  virtual std::string context_refusal(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t /*context*/) const {
    return "";
  }

  // The angles that it reads from Positions::tables, in training or in generation; null: none.
  virtual const kernels::RopeArgs* shared_rotation(bool /*generation*/) const { return nullptr; }
  // The table, from 1 on, whose rows forward() is given; 0: none.
  virtual int64_t value_embedding() const { return 0; }
  // Heads of queries whose logits QK-clip bounds (TokenMixer::clipped_logits); 0: none.
  virtual int64_t logit_heads() const { return 0; }

 protected:
  MixerKind() = default;
  MixerKind(const MixerKind&) = default;
  MixerKind& operator=(const MixerKind&) = default;
  MixerKind(MixerKind&&) = default;
  MixerKind& operator=(MixerKind&&) = default;
};

}  // namespace witan
