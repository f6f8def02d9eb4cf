#include "witan/moe/layer/experts.h"

#include <vector>

#include "witan/kernels/gemm/gemm.h"
#include "witan/nn/lora.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/fp8/fp8_products.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace ops {
namespace {

struct Segment {
  int64_t expert, begin, count;
};

// Reads the groups on the host, which waits for them; on the meta device the load is balanced.
std::vector<Segment> segments(Stream& stream, const RowGroups& groups, int64_t capacity) {
  std::vector<Segment> out;
  const int64_t E = groups.experts(), rows = groups.rows_of(capacity);
  std::vector<int64_t> begin(static_cast<size_t>(E)), count(begin);
  stream.read(begin.data(), groups.begin);
  stream.read(count.data(), groups.count);
  for (int64_t e = 0; e < E; ++e) {
    if (stream.is_meta())
      out.push_back({e, rows * e / E, rows * (e + 1) / E - rows * e / E});
    else
      out.push_back({e, begin[static_cast<size_t>(e)], count[static_cast<size_t>(e)]});
  }
  return out;
}

Tensor matrix_of(const Tensor& w, int64_t expert) {
  return w.narrow(0, expert, 1).reshape({w.size(1), w.size(2)});
}

}  // namespace

Var sequential_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                      const ExpertReplicas& replicas) {
  require<ShapeError>(rows.shape().dims() == 2, "sequential_linear: rows must be [capacity, K], got ", rows.shape());
  require<ShapeError>(
      w.shape().dims() == 3 && w.size(0) + replicas.slots() == groups.experts() && w.size(2) == rows.size(1),
      "sequential_linear: w must be [E=", groups.experts() - replicas.slots(), ", N, K=", rows.size(1), "], got ",
      w.shape());
  require<ShapeError>(w.dtype() == rows.dtype(), "sequential_linear: w is ", w.dtype(), " but rows are ", rows.dtype());
  using kernels::gemm;
  using kernels::Transpose;
  Stream& s = tape.stream();
  const Tensor y = s.empty({rows.size(0), w.size(1)}, rows.dtype());
  for_stacks(s, replicas, groups, w.value(), [&](const RowGroups& of, const Tensor& stack) {
    for (const auto& [expert, begin, count] : segments(s, of, rows.size(0)))
      gemm(s, y.narrow(0, begin, count), Write::overwrite, rows.value().narrow(0, begin, count), Transpose::no,
           matrix_of(stack, expert), Transpose::yes);
  });
  return tape.record("sequential_linear", y, {rows, w},
                     [rows = tape.save(rows), w = tape.save(w), saved = SavedGroups(tape, groups),
                      replicas = SavedReplicas(tape, replicas)](Backward& b, const Tensor& dy) {
                       const Tensor x = b.value(rows), weight = b.value(w);
                       const RowGroups where = saved.value(b);
                       const ExpertReplicas also = replicas.value(b);
                       if (b.wants(rows)) {
                         const Tensor dx = b.stream().empty_like(x);
                         for_stacks(b.stream(), also, where, weight, [&](const RowGroups& of, const Tensor& stack) {
                           for (const auto& [expert, first, size] : segments(b.stream(), of, x.size(0)))
                             gemm(b.stream(), dx.narrow(0, first, size), Write::overwrite, dy.narrow(0, first, size),
                                  Transpose::no, matrix_of(stack, expert), Transpose::no);
                         });
                         b.add(rows, dx);
                       }
                       b.write_parts(w, [&](const Tensor& dw, Write how, int64_t part, int64_t parts) {
                         const auto compute = [&](const RowGroups& of, const Tensor& to, Write write) {
                           for (const auto& [expert, first, size] : segments(b.stream(), of, x.size(0) / parts))
                             gemm(b.stream(), matrix_of(to, expert), write, dy.narrow(0, first, size), Transpose::yes,
                                  x.narrow(0, first, size), Transpose::no);
                         };
                         write_stacks(b.stream(), also, where, dw, how, part, parts, compute);
                       });
                     });
}

}  // namespace ops

ExpertBackend expert_backend(const MoeConfig& config) {
  const bool sequential = config.moe_expert_backend == "sequential" || !config.moe_grouped_gemm;
  if (sequential) return ExpertBackend::sequential;
  return config.moe_expert_backend == "block_sparse" ? ExpertBackend::block_sparse : ExpertBackend::grouped;
}

Experts::Experts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width)
    : Module(builder.path),
      mlp_(mlp),
      backend_(expert_backend(moe)),
      fuses_activation_(backend_ == ExpertBackend::grouped && mlp.swiglu && mlp.activation_func_clamp_value == 0 &&
                        mlp.glu_activation_scale == 1 && mlp.glu_linear_offset == 0 && !moe.moe_expert_add_bias),
      first_(add_expert_parameter(builder, mlp.gated() ? "gate_up_proj" : "up_proj",
                                  {moe.num_experts, mlp.first_rows(), width},
                                  builder.linear_init(builder.init_std, width), TensorSplit{1, mlp.first_blocks()})),
      second_(add_expert_parameter(builder, "down_proj", {moe.num_experts, width, mlp.ffn_hidden_size},
                                   builder.linear_init(builder.output_init_std, mlp.ffn_hidden_size), TensorSplit{2})) {
  first_fp8_ = add_fp8(builder, first_), second_fp8_ = add_fp8(builder, second_);
  // With replicas, sums of blocks would miss the replicas' gradients, which are added later.
  first_.can_sum_blocks = second_.can_sum_blocks =
      backend_ == ExpertBackend::grouped && !first_fp8_ && moe.moe_replicated_experts == 0;
  if (builder.lora) add_adapters(builder, moe.num_experts, width);
  if (!moe.moe_expert_add_bias) return;
  const Builder of_bias = builder.of_kind(ParameterKind::biases);
  first_bias_ = &add_expert_parameter(of_bias, mlp.gated() ? "gate_up_proj_bias" : "up_proj_bias",
                                      {moe.num_experts, mlp.first_rows()}, builder.bias_init(width),
                                      TensorSplit{1, mlp.first_blocks()});
  second_bias_ = &add_expert_parameter(of_bias, "down_proj_bias", {moe.num_experts, width},
                                       builder.bias_init(mlp.ffn_hidden_size), TensorSplit{1});
  bias_begin_ = width / builder.expert_tensor_ranks * builder.expert_tensor_rank;
}

void Experts::add_adapters(const Builder& builder, int64_t experts, int64_t width) {
  const LoraConfig& lora = *builder.lora;
  const bool gate = lora.adapts("gate_proj"), up = lora.adapts("up_proj"), down = lora.adapts("down_proj");
  if (!gate && !up && !down) return;
  require<ConfigError>(!mlp_.gated() || gate == up,
                       "lora_target_modules: gate_proj and up_proj of experts are one "
                       "matrix, with one adapter; name both, or neither");
  require<ConfigError>(!lora.magnitudes,
                       "lora_use_dora = true: experts' matrices have no magnitudes (PEFT has none of them either); set "
                       "lora_target_modules without gate_proj, up_proj and down_proj, or lora_use_dora = false");
  require<ConfigError>(lora.dropout == 0, "lora_dropout = ", lora.dropout,
                       ": rows of experts lie where the layout puts "
                       "them, so that what is dropped would depend on it; set lora_dropout = 0, or lora_target_modules "
                       "without gate_proj, up_proj and down_proj");
  require<ConfigError>(builder.expert_tensor_ranks == 1, "expert_tensor_parallel_size = ", builder.expert_tensor_ranks,
                       " divides experts' matrices, and their adapters are whole; set expert_tensor_parallel_size = 1, "
                       "or lora_target_modules without gate_proj, up_proj and down_proj");
  if (up)
    first_factors_ = add_factors(builder, mlp_.gated() ? "gate_up_proj" : "up_proj", width, mlp_.first_rows(), experts);
  if (down) second_factors_ = add_factors(builder, "down_proj", mlp_.ffn_hidden_size, width, experts);
}

Experts::Factors Experts::add_factors(const Builder& builder, const char* name, int64_t in, int64_t out,
                                      int64_t experts) {
  const Builder here = builder / name;
  const int64_t rank = builder.lora->rank;
  return {&add_expert_parameter(here, kLoraA, {experts, rank, in}, lora_init(in)),
          &add_expert_parameter(here, kLoraB, {experts, out, rank}, {Initialization::Kind::zeros}),
          builder.lora->scale()};
}

void Experts::attach(const ModelServices& services) {
  if (services.adapters_off) adapters_off_ = services.adapters_off;
  Module::attach(services);
}

Var Experts::product(Tape& tape, const Var& rows, const Places& places, Parameter& weight,
                     const Factors& beside) const {
  const auto op = backend_ == ExpertBackend::sequential ? ops::sequential_linear : ops::grouped_linear;
  const Var w = tape.parameter(weight);
  const auto& fp8 = &weight == &first_ ? first_fp8_ : second_fp8_;
  const auto times = [&](const Var& in, const Var& stack) {
    return op(tape, in, places.groups, stack, places.replicas);
  };
  const Var y = fp8             ? ops::fp8_grouped_linear(tape, rows, places.groups, w, fp8)
                : places.blocks ? ops::block_sparse_linear(tape, rows, *places.blocks, w)
                                : times(rows, w);
  if (beside.a == nullptr || (adapters_off_ && *adapters_off_)) return y;
  const Var inner = ops::scale(tape, times(rows, tape.parameter(*beside.a)), beside.scale);
  return ops::add(tape, y, times(inner, tape.parameter(*beside.b)));
}

namespace {

ops::TokenRows rows_of(const DispatchMap& map) {
  return {map.source, map.slot, map.topk};
}

}  // namespace

Var Experts::forward(Tape& tape, const Dispatched& in, const ExpertRows& rows, bool rematerialise) {
  const ModuleScope scope(tape, *this);
  const bool fuses = fuses_activation_ && first_factors_.a == nullptr && second_factors_.a == nullptr;
  if (fuses && first_fp8_) {
    const ops::Fp8Experts experts{tape.parameter(first_), tape.parameter(second_), first_fp8_, second_fp8_,
                                  rematerialise};
    return in.in_place ? ops::fp8_experts(tape, in.rows, rows_of(*in.in_place), rows.groups, in.row_weights, experts)
                       : ops::fp8_experts(tape, in.rows, rows.groups, in.row_weights, experts);
  }
  if (fuses) {
    const ops::SwigluExperts experts{tape.parameter(first_), tape.parameter(second_), rematerialise};
    return in.in_place ? ops::swiglu_experts(tape, in.rows, rows_of(*in.in_place), rows.groups, in.row_weights, experts)
                       : ops::swiglu_experts(tape, in.rows, rows.groups, in.row_weights, experts, rows.replicas);
  }
  const bool gathers = backend_ == ExpertBackend::grouped && first_factors_.a == nullptr && !first_fp8_;
  const Dispatched read = in.in_place && !gathers ? copied_to_rows(tape, in) : in;
  Places places{rows.groups, rows.replicas, {}};
  if (backend_ == ExpertBackend::block_sparse)
    places.blocks = ops::block_topology(tape.stream(), rows.groups, in.row_weights.size(0));
  const Var hidden = activated(tape, read, places, rematerialise);
  const bool sums = backend_ == ExpertBackend::grouped && second_factors_.a == nullptr && !second_bias_ && !first_fp8_;
  if (in.in_place && sums)
    return ops::summed_linear(tape, hidden, rows_of(*in.in_place), rows.groups, tape.parameter(second_));
  Var y = product(tape, hidden, places, second_, second_factors_);
  if (second_bias_)
    y = ops::grouped_bias(tape, std::move(y), rows.groups, tape.parameter(*second_bias_), in.row_weights, bias_begin_,
                          rows.replicas);
  return in.in_place ? combine(tape, y, *in.in_place) : y;
}

// [capacity, F]
Var Experts::activated(Tape& tape, const Dispatched& in, const Places& places, bool rematerialise) {
  const RowGroups& groups = places.groups;
  Var h = in.in_place ? ops::gathered_linear(tape, in.rows, rows_of(*in.in_place), groups, tape.parameter(first_))
                      : product(tape, in.rows, places, first_, first_factors_);  // [capacity, 2F]
  if (first_bias_)
    h = ops::grouped_bias(tape, std::move(h), groups, tape.parameter(*first_bias_), {}, 0, places.replicas);
  return activation(tape, mlp_, h, in.row_weights, &groups, rematerialise);
}

MlpConfig shared_experts_mlp(const MoeConfig& moe, MlpConfig expert) {
  expert.ffn_hidden_size = moe.has_shared_experts() ? moe.moe_shared_expert_intermediate_size : 0;
  return expert;
}

SharedExperts::SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width)
    : Mlp(builder, shared_experts_mlp(moe, mlp), width) {
  if (!moe.moe_shared_expert_gate) return;
  gate_ = &add_parameter((builder / "gate").of_kind(ParameterKind::routers), "weight", {1, width},
                         builder.linear_init(builder.init_std, width));
}

Var SharedExperts::forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness) {
  const Var y = Mlp::forward(tape, x, rematerialise, randomness);
  return gate_ ? ops::row_gate(tape, y, ops::linear(tape, x, tape.parameter(*gate_), {})) : y;
}

}  // namespace witan
