// witan bench moe-layer: a Mixture-of-Experts layer, with its routing given and with its router.
#include <fmt/core.h>

#include <memory>
#include <numeric>
#include <optional>

#include "witan/base/rng.h"
#include "witan/cli/bench/bench.h"
#include "witan/cli/options.h"
#include "witan/comm/meta.h"
#include "witan/moe/moe.h"

namespace witan::cli {
namespace {

struct MoeLayerArgs {
  BenchArgs args;
  int64_t tokens = 0, hidden = 0, ffn = 0, experts = 0, topk = 0;
  std::string dtype, gradient_dtype = "float32";
};

void set_defaults(MoeLayerArgs& s, bool on_gpu) {
  const auto set = [&](int64_t& size, int64_t gpu, int64_t cpu) {
    if (size == 0) size = on_gpu ? gpu : cpu;
  };
  set(s.tokens, 16384, 1024);
  set(s.hidden, 512, 256);
  set(s.ffn, 1792, 512);
  set(s.experts, 64, 8);
  set(s.topk, 1, 2);
  require<UsageError>(s.topk <= s.experts, "witan bench moe-layer: --topk ", s.topk, " exceeds --experts ", s.experts);
}

// K different experts for each token, drawn evenly, with random weights.
Routing random_routing(Bench& bench, Tape& tape, const MoeLayerArgs& s, DType dtype) {
  std::vector<int32_t> ids, deck(static_cast<size_t>(s.experts));
  std::vector<int64_t> counts(static_cast<size_t>(s.experts));
  std::iota(deck.begin(), deck.end(), 0);
  const Philox rng(1, 1);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t k = 0; k < s.topk; ++k) {
      const auto draw = rng.below(static_cast<uint64_t>(s.experts - k), static_cast<uint64_t>(t * s.topk + k));
      std::swap(deck[static_cast<size_t>(k)], deck[static_cast<size_t>(k) + draw]);
      ids.push_back(deck[static_cast<size_t>(k)]);
      ++counts[static_cast<size_t>(ids.back())];
    }
  Stream& stream = bench.stream();
  Routing routing;
  routing.weights = tape.input(bench.normal({s.tokens, s.topk}, accumulator(dtype)));
  routing.ids = stream.empty({s.tokens, s.topk}, DType::i32);
  routing.counts = stream.empty({s.experts}, DType::i64);
  stream.write(routing.ids, ids.data());
  stream.write(routing.counts, counts.data());
  routing.kept = routing.counts;
  routing.capacity = s.tokens;
  return routing;
}

class BenchLayer {
 public:
  BenchLayer(Bench& bench, const MoeLayerArgs& s, DType dtype)
      : bench_(bench),
        state_(s),
        builder_{.stream = bench.stream(), .dtype = dtype},
        moe_{.num_experts = s.experts, .moe_router_topk = s.topk},
        mlp_{.ffn_hidden_size = s.ffn},
        router_(make_router(builder_ / "router", moe_, s.hidden)),
        dispatcher_(make_dispatcher({}, alone_)),
        experts_(builder_ / "experts", moe_, mlp_, s.hidden),
        x_(bench.normal({s.tokens, s.hidden}, dtype)),
        dy_(bench.normal({s.tokens, s.hidden}, dtype)) {
    bind(*router_, accumulator(dtype));
    bind(experts_, s.gradient_dtype == "float32" ? accumulator(dtype) : dtype);
  }

  // Expert products: gate, up and down, each of T K rows.
  double flops(bool backward) const {
    const MoeLayerArgs& s = state_;
    return (backward ? 18.0 : 6.0) * static_cast<double>(s.tokens * s.topk) * static_cast<double>(s.hidden * s.ffn);
  }

  // Nothing is given: the routing is the router's own.
  void run(const Routing* given, bool backward) {
    Tape tape(bench_.stream());
    const Var x = tape.input(x_);
    const Routing routing = given ? with_weights(tape, *given) : router_->forward(tape, x);
    const Var y = dispatcher_->forward(tape, x, routing, [&](Tape& on, const Dispatched& in, const RowGroups& groups) {
      return experts_.forward(on, in, groups, false);
    });
    if (!backward) return;
    for (const Module* module : {static_cast<const Module*>(router_.get()), static_cast<const Module*>(&experts_)})
      for (Parameter* parameter : module->parameters()) parameter->clear_gradient();
    tape.backward({{y, dy_}});
  }

 private:
  // On this tape, so that their gradient is wanted, as in training.
  static Routing with_weights(Tape& tape, Routing routing) {
    routing.weights = tape.input(routing.weights.value());
    return routing;
  }
  void bind(const Module& module, DType dtype) {
    for (Parameter* parameter : module.parameters())
      parameter->bind_gradient(bench_.stream().empty(parameter->value().shape(), dtype, MemoryTag::gradients));
  }

  Bench& bench_;
  const MoeLayerArgs& state_;
  const Builder builder_;
  const MoeConfig moe_;
  const MlpConfig mlp_;
  MetaGroup alone_{1, 0, "expert"};
  std::unique_ptr<Router> router_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  Experts experts_;
  Tensor x_, dy_;
};

void measure(Bench& bench, const MoeLayerArgs& s, DType dtype) {
  BenchLayer layer(bench, s, dtype);
  Tape tape(bench.stream());
  const Routing given = random_routing(bench, tape, s, dtype);
  for (const Routing* routing : {&given, static_cast<const Routing*>(nullptr)})
    for (const bool backward : {false, true})
      bench.measure_replayed(
          cat(routing ? "routing given" : "with the router", backward ? ", forward and backward" : ", forward"),
          {.flops = layer.flops(backward)}, [&] { layer.run(routing, backward); });
}

ExitCode bench_moe_layer(Context& context, MoeLayerArgs& s) {
  const bool on_gpu = bench_device(s.args.device).kind == Device::Kind::cuda;
  set_defaults(s, on_gpu);
  const DType dtype = bench_dtype(s.dtype, on_gpu);
  const std::string title = fmt::format("moe-layer, T {}, d {}, n {}, E {}, K {}, {}", s.tokens, s.hidden, s.ffn,
                                        s.experts, s.topk, name_of(dtype));
  finish_report(context, s.args.json, run_bench(title, s.args, [&](Bench& bench) { measure(bench, s, dtype); }));
  return ExitCode::done;
}

}  // namespace

void add_bench_moe_layer(CLI::App& bench, Context& context) {
  auto state = std::make_shared<MoeLayerArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"moe-layer",
       "Measure a Mixture-of-Experts layer of SwiGLU experts: dispatch, experts, combine, and their gradients",
       "FLOPs count the experts' products only, 6 T K d n forward and 18 T K d n with the backward. A size of 0 stands "
       "for that of the reference MoE on a GPU, of the default recipe on a CPU.",
       "witan bench moe-layer\n"
       "witan bench moe-layer --tokens 32768 --hidden 2048 --ffn 1024 --experts 64 --topk 8\n"
       "witan bench moe-layer --tokens 16384 --hidden 4096 --ffn 14336 --experts 8 --topk 2",
       Processes::one},
      [&context, state] { return bench_moe_layer(context, *state); });
  add_size(*command, "--tokens", state->tokens, "Tokens T (0: 16384 or 1024)", 0);
  add_size(*command, "--hidden", state->hidden, "Hidden size d (0: 512 or 256)", 0);
  add_size(*command, "--ffn", state->ffn, "FFN hidden size n of an expert (0: 1792 or 512)", 0);
  add_size(*command, "--experts", state->experts, "Number of experts E (0: 64 or 8)", 0);
  add_size(*command, "--topk", state->topk, "Experts per token K (0: 1 or 2)", 0);
  add_dtype(*command, state->dtype);
  add_option(*command, "--gradient-dtype", state->gradient_dtype,
             "Dtype of the experts' weight gradients: float32 | bfloat16")
      .one_of({"bfloat16", "float32"})
      .type_name("DTYPE")
      .show_default()
      .group("shapes");
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli
