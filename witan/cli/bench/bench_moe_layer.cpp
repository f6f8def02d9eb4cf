// witan bench moe-layer: measures a Mixture-of-Experts layer with given routing, and with a router.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "witan/base/numbers/rng.h"
#include "witan/cli/args/config_args.h"
#include "witan/cli/args/options.h"
#include "witan/cli/bench/bench.h"
#include "witan/comm/meta.h"
#include "witan/data/routes/route_file.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/moe/dispatchers/dispatcher.h"
#include "witan/moe/layer/experts.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/router.h"
#include "witan/ops/fp8/fp8_quantiser.h"
#include "witan/ops/shape/shape.h"

namespace witan::cli {
namespace {

struct MoeLayerArgs {
  BenchArgs args;
  int64_t tokens = 0, sequence = 0, hidden = 0, ffn = 0, experts = 0, topk = 0;
  std::string dtype, gradient_dtype = "float32", fp8_format = "none";
  std::string skew;    // empty: even loads
  std::string routes;  // a file of recorded routes; empty: random ones
  int64_t layer = -1;  // a layer of that file; -1: its first
  MoeConfig moe;
  std::vector<int32_t> recorded;    // [tokens, topk] of `routes`
  std::optional<FieldFlags> flags;  // the flags of `moe`
};

// The keys of a configuration that determine how tokens are routed.
Fields router_fields(MoeConfig& moe) {
  Fields fields;
  for (Field& field : moe.fields()) {
    const bool balances = field.name == "moe_aux_loss_coeff" || field.name == "moe_z_loss_coeff";
    const bool routes = field.name.starts_with("moe_router_") && field.name != "moe_router_topk";
    if (!balances && !routes && field.name != "moe_input_jitter_eps") continue;
    field.section = "router";
    fields.push_back(std::move(field));
  }
  return fields;
}

void set_defaults(MoeLayerArgs& s, bool on_gpu) {
  const auto set = [&](int64_t& size, int64_t gpu, int64_t cpu) {
    if (size == 0) size = on_gpu ? gpu : cpu;
  };
  set(s.tokens, 16384, 1024);
  set(s.hidden, 512, 256);
  set(s.ffn, 1792, 512);
  set(s.experts, 64, 8);
  set(s.topk, 1, 2);
  if (s.sequence == 0) s.sequence = s.tokens;
  require<UsageError>(s.topk <= s.experts, "witan bench moe-layer: --topk ", s.topk, " exceeds --experts ", s.experts);
  require<UsageError>(s.tokens % s.sequence == 0, "witan bench moe-layer: --tokens ", s.tokens,
                      " are not sequences of --sequence ", s.sequence);
}

// The configuration of the router.
MoeConfig asked(const MoeLayerArgs& s) {
  MoeConfig moe = s.moe;
  moe.num_experts = s.experts;
  moe.moe_router_topk = s.topk;
  if (s.topk == 1 && moe.moe_router_score_function == "softmax") moe.moe_router_pre_softmax = true;
  apply_skew(moe, s.skew);
  moe.validate(1);
  return moe;
}

// The cheapest router: a forced even choice without balancing.
MoeConfig uniform(const MoeLayerArgs& s) {
  MoeConfig moe{.num_experts = s.experts, .moe_router_topk = s.topk};
  moe.moe_router_pre_softmax = s.topk == 1;
  moe.moe_router_selection = "uniform";
  moe.moe_router_load_balancing_type = "none";
  return moe;
}

// The layer of --routes whose tokens are measured.
const RouteFile::Layer& recorded_layer(const MoeLayerArgs& s, const RouteFile& file) {
  const auto layer =
      s.layer < 0 ? file.layers.begin() : std::ranges::find(file.layers, s.layer, &RouteFile::Layer::layer);
  require<UsageError>(layer != file.layers.end(), "witan bench moe-layer: ", s.routes, " has no routes of --layer ",
                      s.layer, "; its first layer is ", file.layers.front().layer);
  return *layer;
}

// Takes sizes that the call does not give from the file of --routes, and its experts into `recorded`.
void read_recorded(MoeLayerArgs& s) {
  require<UsageError>(s.layer < 0 || !s.routes.empty(), "witan bench moe-layer: --layer ", s.layer,
                      " is a layer of --routes, which is not given");
  if (s.routes.empty()) return;
  require<UsageError>(s.skew.empty(),
                      "witan bench moe-layer: --skew and --routes both say which experts tokens choose");
  const RouteFile file = read_routes(s.routes);
  const auto& ids = recorded_layer(s, file).ids;
  const auto take = [&](int64_t& size, int64_t recorded, const char* flag) {
    require<UsageError>(size == 0 || size == recorded, "witan bench moe-layer: ", flag, " ", size, ", but ", s.routes,
                        " was recorded with ", recorded);
    size = recorded;
  };
  take(s.experts, file.experts, "--experts");
  take(s.topk, file.topk, "--topk");
  const int64_t tokens = static_cast<int64_t>(ids.size()) / file.topk;
  if (s.tokens == 0) s.tokens = tokens;
  require<UsageError>(s.tokens <= tokens, "witan bench moe-layer: ", s.routes, " has ", tokens,
                      " tokens: leave --tokens ", s.tokens, " out, or give a file of more");
  s.recorded.assign(ids.begin(), ids.begin() + s.tokens * s.topk);
}

// Draws K different experts for each token, uniformly.
std::vector<int32_t> drawn_experts(const MoeLayerArgs& s) {
  std::vector<int32_t> ids, deck(static_cast<size_t>(s.experts));
  std::iota(deck.begin(), deck.end(), 0);
  const Philox rng(1, 1);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t k = 0; k < s.topk; ++k) {
      const auto draw = rng.below(static_cast<uint64_t>(s.experts - k), static_cast<uint64_t>(t * s.topk + k));
      std::swap(deck[static_cast<size_t>(k)], deck[static_cast<size_t>(k) + draw]);
      ids.push_back(deck[static_cast<size_t>(k)]);
    }
  return ids;
}

std::vector<int64_t> counts_of(const std::vector<int32_t>& ids, int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts));
  for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  return counts;
}

// The recorded or random experts of each token, with random weights.
Routing given_routing(Bench& bench, Tape& tape, const MoeLayerArgs& s, DType dtype) {
  const std::vector<int32_t> ids = s.routes.empty() ? drawn_experts(s) : s.recorded;
  const std::vector<int64_t> counts = counts_of(ids, s.experts);
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

void bind_gradients(Stream& stream, const Module& module, DType dtype) {
  for (Parameter* parameter : module.parameters())
    parameter->bind_gradient(stream.empty(parameter->value().shape(), dtype, MemoryTag::gradients));
}

// A router with everything that a training step does for it: its losses, and the work after an update.
class BenchRouter {
 public:
  BenchRouter(Bench& bench, const Builder& builder, const MoeConfig& moe, const MoeLayerArgs& s)
      : stream_(bench.stream()), router_(make_router(builder / "router", moe, s.hidden)) {
    const DType A = accumulator(builder.dtype);
    bind_gradients(stream_, *router_, A);
    for (Buffer* buffer : router_->buffers())
      if (buffer->spec().rule == BufferSpec::Rule::summed)
        buffer->bind_share(stream_.empty(buffer->spec().shape, buffer->spec().dtype));
    for (const RouterStatistic& loss : declare_losses(moe)) {
      if (*loss.loss_coefficient == 0) continue;
      losses_.push_back({loss.name, stream_.empty({1}, A)});
      kernels::fill(stream_, losses_.back().gradient, *loss.loss_coefficient);
    }
    std::vector<double> step(kernels::kStepValues, 1);
    step[kernels::step_value::skip] = 0;
    source_.randomness = {.seed = 1, .step = stream_.empty({kernels::kStepValues}, DType::f64)};
    stream_.write(source_.randomness.step, step.data());
    std::vector<int32_t> ids(static_cast<size_t>(s.tokens));
    const Philox rng(1, 2);
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>(rng.below(1 << 16, t));
    source_.ids = stream_.empty({s.tokens / s.sequence, s.sequence}, DType::i32);
    stream_.write(source_.ids, ids.data());
  }

  Routing forward(Tape& tape, const Var& x) {
    for (const Buffer* buffer : router_->buffers())
      if (buffer->share().defined()) stream_.zero(buffer->share());
    return router_->forward(tape, x, Dropping::by_capacity, source_);
  }
  // Adds the losses of this routing to the roots of the backward, as a step does.
  void add_losses(const Routing& routing, std::vector<std::pair<Var, Tensor>>& roots) const {
    for (const auto& [name, gradient] : losses_) roots.emplace_back(routing.record.loss(name), gradient);
  }
  void after_update() {
    for (const Buffer* buffer : router_->buffers())
      if (buffer->share().defined()) stream_.copy(buffer->value(), buffer->share());
    router_->after_update(stream_, source_.randomness.step);
  }
  void clear_gradients() {
    for (Parameter* parameter : router_->parameters()) parameter->clear_gradient();
  }

 private:
  struct Loss {
    std::string name;
    Tensor gradient;  // [1], the loss's coefficient
  };

  Stream& stream_;
  std::unique_ptr<Router> router_;
  std::vector<Loss> losses_;
  TokenSource source_;
};

// Blockwise scales, which do not depend on earlier steps.
std::shared_ptr<const ops::Fp8Recipe> fp8_recipe(const MoeLayerArgs& s) {
  return s.fp8_format == "none" ? nullptr : std::make_shared<const ops::Fp8Recipe>();
}

class BenchLayer {
 public:
  BenchLayer(Bench& bench, const MoeLayerArgs& s, DType dtype)
      : bench_(bench),
        state_(s),
        builder_{.stream = bench.stream(), .dtype = dtype, .fp8 = fp8_recipe(s)},
        asked_(bench, builder_, asked(s), s),
        uniform_(bench, builder_, uniform(s), s),
        dispatcher_(make_dispatcher({}, alone_)),
        experts_(builder_ / "experts", asked(s), {.ffn_hidden_size = s.ffn}, s.hidden),
        x_(bench.normal({s.tokens / s.sequence, s.sequence, s.hidden}, dtype)),
        dy_(bench.normal({s.tokens, s.hidden}, dtype)) {
    const bool wide = s.gradient_dtype == "float32" || dtype == DType::f16;
    bind_gradients(bench.stream(), experts_, wide ? accumulator(dtype) : dtype);
  }

  BenchRouter& asked_router() { return asked_; }
  BenchRouter& uniform_router() { return uniform_; }

  // Expert products: gate, up and down, each of T K rows.
  double flops(bool backward) const {
    const MoeLayerArgs& s = state_;
    return (backward ? 18.0 : 6.0) * static_cast<double>(s.tokens * s.topk) * static_cast<double>(s.hidden * s.ffn);
  }

  // The router's decision, without a tape.
  Routing route(BenchRouter& router) {
    Tape tape(bench_.stream(), Tape::Mode::off);
    Routing routing = router.forward(tape, tape.constant(x_));
    routing.record = {};
    return routing;
  }
  void run(const Routing& given, bool backward) {
    Tape tape(bench_.stream());
    Routing routing = given;
    routing.weights = tape.input(given.weights.value());  // an input, so that it gets a gradient as in training
    const Var y = experts(tape, tape.input(x_), routing);
    if (backward) finish(tape, {{y, dy_}});
  }
  void run(BenchRouter& router, bool backward) {
    Tape tape(bench_.stream());
    const Var x = tape.input(x_);
    const Routing routing = router.forward(tape, x);
    std::vector<std::pair<Var, Tensor>> roots{{experts(tape, x, routing), dy_}};
    if (!backward) return;
    router.clear_gradients();
    router.add_losses(routing, roots);
    finish(tape, roots);
    router.after_update();
  }

 private:
  Var experts(Tape& tape, const Var& x, const Routing& routing) {
    const Var tokens = ops::reshape(tape, x, {state_.tokens, state_.hidden});
    return dispatcher_->forward(tape, tokens, routing, [&](Tape& on, const Dispatched& in, const ExpertRows& rows) {
      return experts_.forward(on, in, rows, false);
    });
  }
  void finish(Tape& tape, const std::vector<std::pair<Var, Tensor>>& roots) {
    for (Parameter* parameter : experts_.parameters()) parameter->clear_gradient();
    tape.backward(roots);
  }

  Bench& bench_;
  const MoeLayerArgs& state_;
  const Builder builder_;
  MetaGroup alone_{1, 0, "expert"};
  BenchRouter asked_, uniform_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  Experts experts_;
  Tensor x_, dy_;
};

// The load of the busiest expert over the mean.
struct Loads {
  double given = 0, routed = 0;
};

// `counts` [E]: tokens of each expert.
double load_of(Stream& stream, const Tensor& counts) {
  std::vector<int64_t> read(static_cast<size_t>(counts.elements()));
  stream.read(read.data(), counts);
  return max_over_mean(std::vector<double>(read.begin(), read.end()));
}

Loads measure(Bench& bench, const MoeLayerArgs& s, DType dtype) {
  BenchLayer layer(bench, s, dtype);
  Tape tape(bench.stream());
  const Routing given = given_routing(bench, tape, s, dtype);
  const auto lines = [&](const char* name, std::vector<bool> passes, auto& of) {
    for (const bool backward : passes)
      bench.measure_replayed(cat(name, backward ? ", forward and backward" : ", forward"),
                             {.flops = layer.flops(backward)}, [&] { layer.run(of, backward); });
  };
  lines("routing given", {false, true}, given);
  lines("with the router", {false, true}, layer.asked_router());
  // The layer with the routing that the router has now, which its bias has changed, but without the router's own work.
  const Routing own = layer.route(layer.asked_router());
  lines("the router's own routing given", {true}, own);
  lines("with a uniform router", {true}, layer.uniform_router());
  return {load_of(bench.stream(), given.counts), load_of(bench.stream(), own.counts)};
}

// The router's share of the layer's time, forward and backward, from these lines, and how uneven experts' loads were.
std::vector<BenchFigure> figures_of(const std::vector<BenchLine>& lines, const Loads& loads) {
  const auto seconds = [&](const std::string& name) {
    return std::ranges::find(lines, cat(name, ", forward and backward"), &BenchLine::name)->seconds;
  };
  const double with = seconds("with the router");
  const auto figure = [&](const char* key, const char* label, double without) {
    const double share = with > 0 ? 1 - without / with : 0;
    return BenchFigure{key, share, label, fmt::format("{:.1f} %", 100 * share)};
  };
  return {figure("router_share", "router's share of forward and backward", seconds("the router's own routing given")),
          figure("share_over_uniform", "what it takes more than a uniform one", seconds("with a uniform router")),
          {"load_max_over_mean", loads.routed, "largest load of an expert over the mean",
           fmt::format("{:.2f} by the router, {:.2f} given", loads.routed, loads.given)}};
}

// Throws as a configuration of such a model would.
void check_fp8(const MoeLayerArgs& s, DType dtype, bool on_gpu) {
  if (s.fp8_format == "none") return;
  require<ConfigError>(dtype == DType::bf16 || (dtype == DType::f32 && !on_gpu), "--fp8-format ", s.fp8_format,
                       " with --dtype ", name_of(dtype), ": products in 8 bits are of bfloat16",
                       on_gpu ? "" : " or float32", "; give --dtype bfloat16, or --fp8-format none");
}

ExitCode bench_moe_layer(Context& context, MoeLayerArgs& s) {
  const bool on_gpu = bench_device(s.args.device).kind == Device::Kind::cuda;
  read_recorded(s);
  set_defaults(s, on_gpu);
  s.flags->apply();
  const DType dtype = bench_dtype(s.dtype, on_gpu);
  check_fp8(s, dtype, on_gpu);
  const std::string title =
      fmt::format("moe-layer, T {}, d {}, n {}, E {}, K {}, {}{}", s.tokens, s.hidden, s.ffn, s.experts, s.topk,
                  name_of(dtype), s.fp8_format == "none" ? "" : ", operands in " + s.fp8_format);
  Loads loads;
  BenchReport report = run_bench(title, s.args, [&](Bench& bench) { loads = measure(bench, s, dtype); });
  report.figures = figures_of(report.lines, loads);
  finish_report(context, s.args.json, report);
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
       "for that of the reference MoE on a GPU, of the default recipe on a CPU. The router's share is what the layer "
       "with it, its losses' gradients and the update of its bias takes longer than with its choice given; beside it "
       "stands what it takes longer than a forced even choice without losses. With K = 1 a softmax is over all "
       "experts.",
       "witan bench moe-layer\n"
       "witan bench moe-layer --moe-router-score-function sigmoid --moe-router-enable-expert-bias\n"
       "witan bench moe-layer --skew 4x\n"
       "witan bench moe-layer --tokens 32768 --hidden 2048 --ffn 1024 --experts 64 --topk 8\n"
       "witan bench moe-layer --tokens 16384 --hidden 4096 --ffn 14336 --experts 8 --topk 2\n"
       "witan bench moe-layer --tokens 16384 --hidden 4096 --ffn 14336 --experts 8 --topk 2 --fp8-format e4m3",
       Processes::one},
      [&context, state] { return bench_moe_layer(context, *state); });
  add_size(*command, "--tokens", state->tokens, "Tokens T (0: 16384 or 1024)", 0);
  add_size(*command, "--sequence", state->sequence, "Tokens of a sequence, which seq_aux_loss balances (0: T)", 0);
  add_size(*command, "--hidden", state->hidden, "Hidden size d (0: 512 or 256)", 0);
  add_size(*command, "--ffn", state->ffn, "FFN hidden size n of an expert (0: 1792 or 512)", 0);
  add_size(*command, "--experts", state->experts, "Number of experts E (0: 64 or 8)", 0);
  add_size(*command, "--topk", state->topk, "Experts per token K (0: 1 or 2)", 0);
  add_dtype(*command, state->dtype);
  add_option(*command, "--gradient-dtype", state->gradient_dtype,
             "Dtype of the experts' weight gradients (of float16 they are float32)")
      .one_of({"bfloat16", "float32"})
      .show_default()
      .group("shapes");
  add_option(*command, "--fp8-format", state->fp8_format, "8-bit format of the operands of the experts' products")
      .one_of({"none", "e4m3"})
      .show_default()
      .group("shapes");
  add_skew(*command, state->skew);
  add_option(*command, "--routes", state->routes,
             "Use the routes of this file (--record-routes) in the lines with given routing")
      .type_name("FILE")
      .group("router");
  add_option(*command, "--layer", state->layer, "Layer of --routes (-1: its first)")
      .type_name("N")
      .range(int64_t{-1}, int64_t{1} << 30)
      .group("router");
  state->flags.emplace(*command, router_fields(state->moe));
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli
