// A token mixer other than attention, for tests of the requirements that layers, generation, checkpoints and plans have
// for any mixer: the mean of a document's earlier values, times a gate.
//
//   v = W_v x,   m[t] = mean over the document's tokens s <= t of v[s],   y = W_o (silu(W_g x) * m)
//
// Its state is a sum for each channel: constant memory for a text of any length, which cannot be cut. The tensor axis
// divides channels, and so do context-parallel ranks, each of which gets whole sequences of some channels. CPU only.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/lora.h"
#include "witan/nn/mixer/mixer_kind.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/ops/attention/attention.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/shape/shape.h"

namespace witan::testing {

// Calls each(b, begin, end) for the tokens [begin, end) of each document of row b.
template <class Each>
void for_documents(const Tensor& ids, int64_t B, int64_t S, const Each& each) {
  for (int64_t b = 0; b < B; ++b)
    for (int64_t begin = 0, end = 0; begin < S; begin = end) {
      const auto same = [&](int64_t s) {
        return !ids.defined() || ids.data<int32_t>()[b * S + s] == ids.data<int32_t>()[b * S + begin];
      };
      while (end < S && same(end)) ++end;
      each(b, begin, end);
    }
}

// m [B, S, ..] of v [B, S, ..]; ids [B, S] int32, or undefined: a row is one document.
inline Var running_mean(Tape& tape, const Var& v, const Tensor& ids) {
  const int64_t B = v.size(0), S = v.size(1), W = v.value().elements() / std::max<int64_t>(B * S, 1);
  const Tensor m = tape.stream().empty_like(v.value());
  const Cost cost{2.0 * static_cast<double>(m.elements()), kernels::bytes_of(v.value(), m)};
  kernels::charge(tape.stream(), "running_mean", cost, [&] {
    dispatch_floating(v.dtype(), [&]<class T>() {
      for_documents(ids, B, S, [&](int64_t b, int64_t begin, int64_t end) {
        for (int64_t w = 0; w < W; ++w) {
          Accumulator<T> sum = 0;
          for (int64_t s = begin; s < end; ++s) {
            const int64_t at = (b * S + s) * W + w;
            sum += static_cast<Accumulator<T>>(v.value().data<T>()[at]);
            m.data<T>()[at] = T(sum / static_cast<Accumulator<T>>(s - begin + 1));
          }
        }
      });
    });
  });
  // dv[s] = sum over the document's t >= s of dm[t] / (t - begin + 1)
  return tape.record("running_mean", m, {v}, [to = tape.slot(v), ids, B, S, W](Backward& back, const Tensor& dm) {
    const Tensor dv = back.stream().empty_like(dm);
    const Cost work{2.0 * static_cast<double>(dv.elements()), kernels::bytes_of(dm, dv)};
    kernels::charge(back.stream(), "running_mean_backward", work, [&] {
      dispatch_floating(dm.dtype(), [&]<class T>() {
        for_documents(ids, B, S, [&](int64_t b, int64_t begin, int64_t end) {
          for (int64_t w = 0; w < W; ++w) {
            Accumulator<T> sum = 0;
            for (int64_t s = end - 1; s >= begin; --s) {
              const int64_t at = (b * S + s) * W + w;
              sum += static_cast<Accumulator<T>>(dm.data<T>()[at]) / static_cast<Accumulator<T>>(s - begin + 1);
              dv.data<T>()[at] = T(sum);
            }
          }
        });
      });
    });
    back.add(to, dv);
  });
}

class MeanState : public SequenceState {
 public:
  MeanState(Stream& stream, int64_t rows, int64_t channels, DType dtype)
      : sums(stream.empty({rows, channels}, accumulator(dtype))) {}

  int64_t bytes() const override { return sums.bytes(); }
  int64_t resumable(int64_t wanted, int64_t held, int64_t /*reach*/) const override {
    return wanted == held ? wanted : 0;
  }
  void copy_row(Stream& stream, int64_t from, int64_t to) override {
    stream.copy(sums.narrow(0, to, 1), sums.narrow(0, from, 1));
  }

  const Tensor sums;  // [R, C]
};

class RunningMean : public TokenMixer {
 public:
  RunningMean(const Builder& builder, int64_t channels, const MixerModel& model, const ContextAxis& context)
      : TokenMixer(builder.path),
        axis_(builder.tensor),
        context_(context),
        channels_(builder.share(channels)),
        v_proj_(builder / "v_proj", model.width, channels, builder.init_std, model.bias, Divided::out()),
        g_proj_(builder / "g_proj", model.width, channels, builder.init_std, model.bias, Divided::out()),
        o_proj_(builder / "o_proj", channels, model.width, builder.output_init_std, model.bias, Divided::in()) {
    for (Linear* child : {&v_proj_, &g_proj_, &o_proj_}) add_child(*child);
  }

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& /*embedded*/ = {}) override {
    const ModuleScope scope(tape, *this);
    const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;
    const Var v = v_proj_.forward(tape, tokens, randomness), g = g_proj_.forward(tape, tokens, randomness);
    return gated(tape, g, mean(tape, v, where), randomness);
  }

  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
             const Var& /*embedded*/ = {}) override {
    const ModuleScope scope(tape, *this);
    const Var v = v_proj_.forward(tape, x), g = g_proj_.forward(tape, x);
    const Tensor m = tape.stream().empty_like(v.value()), sums = dynamic_cast<MeanState&>(state).sums;
    const Cost cost{2.0 * static_cast<double>(m.elements()), kernels::bytes_of(v.value(), m)};
    kernels::charge(tape.stream(), "running_mean_decode", cost, [&] {
      dispatch_floating(v.dtype(), [&]<class T>() {
        using A = Accumulator<T>;
        int64_t at = 0;
        for (const kernels::CacheRun& run : where.cached.runs) {
          A* const row = sums.data<A>() + run.row * channels_;
          if (run.past == 0) std::fill_n(row, channels_, A(0));
          for (int64_t position = run.past; position < run.past + run.count; ++position)
            for (int64_t w = 0; w < channels_; ++w, ++at) {
              row[w] += static_cast<A>(v.value().data<T>()[at]);
              m.data<T>()[at] = T(row[w] / static_cast<A>(position + 1));
            }
        }
      });
    });
    return gated(tape, g, tape.constant(m), {});
  }
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override {
    return std::make_unique<MeanState>(stream, size.rows, channels_, dtype);
  }

 private:
  Var gated(Tape& tape, const Var& gate, const Var& m, const Randomness& randomness) {
    return o_proj_.forward(tape, ops::swiglu(tape, ops::join_columns(tape, gate, m), {}), randomness);
  }

  // Averages whole sequences, for all channels of this rank or, if ranks divide sequences, for a part.
  Var mean(Tape& tape, const Var& v, const Positions& where) {
    Tensor ids = where.hints.one_sequence_per_row ? Tensor() : where.sequence_ids;
    if (!context_.divides()) return running_mean(tape, v, ids);
    if (ids.defined())
      ids = where.whole_ids.defined() ? where.whole_ids : gather_sequence_ids(tape.stream(), ids, *context_.group);
    const int64_t n = context_.group->size();
    const Var parts = ops::reshape(tape, v, {v.size(0), v.size(1), n, channels_ / n});
    const Var whole = ops::gather_sequence(tape, {parts}, *context_.group).front();
    return ops::reshape(tape, ops::scatter_sequence(tape, running_mean(tape, whole, ids), *context_.group), v.shape());
  }

  std::optional<TensorAxis> axis_;
  ContextAxis context_;
  int64_t channels_;  // of this rank
  Linear v_proj_, g_proj_, o_proj_;
};

struct RunningMeanKind : public MixerKind {
  explicit RunningMeanKind(int64_t of_all_ranks) : channels(of_all_ranks) {}

  std::string describe() const override { return "gated running mean"; }
  const char* name() const override { return "running_mean"; }
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override {
    return std::make_unique<RunningMean>(builder, channels, model, context);
  }

  MixerCounts parameters(const MixerModel& model) const override {
    MixerCounts counts{.weights = 3 * model.width * channels};
    if (model.bias != Bias::none) counts.vectors = 2 * channels + model.width;
    const auto adapter = [&](const char* matrix, int64_t in, int64_t out) {
      if (model.lora && model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
    };
    adapter("v_proj", model.width, channels);
    adapter("g_proj", model.width, channels);
    adapter("o_proj", channels, model.width);
    return counts;
  }
  double mixing_flops(int64_t /*seq_length*/) const override { return 2 * static_cast<double>(channels); }
  double decoding_flops(int64_t /*position*/) const override { return 2 * static_cast<double>(channels); }
  double kept_channels() const override { return 4 * static_cast<double>(channels); }
  StateBytes state_bytes(const StateSize& /*size*/, DType dtype) const override {
    return {.fixed = channels * static_cast<int64_t>(size_of(accumulator(dtype)))};
  }

  DividedSizes tensor_sizes() const override { return {{"channels of a running mean", channels}}; }
  ContextUse context_use(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const override {
    ContextUse use;
    if (context == 1) return use;
    use.exchanges_channels = true;
    use.exchanged_channels = 2 * static_cast<double>(channels) / static_cast<double>(tensor * context);
    return use;
  }
  bool context_ranks_divide(int64_t tensor, int64_t context) const override { return channels / tensor % context == 0; }
  int64_t most_context_ranks(int64_t tensor) const override { return channels / tensor; }
  std::string context_parts(int64_t tensor) const override { return counted(channels / tensor, "channel"); }
  std::string context_refusal(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const override {
    if (context_ranks_divide(tensor, context)) return "";
    return cat("ranks exchange the ", context_parts(tensor), " of a running mean, which they do not divide; ");
  }

  int64_t channels;  // C
};

}  // namespace witan::testing
