#include <algorithm>
#include <charconv>
#include <functional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/megatron/megatron_args.h"

namespace witan {
namespace {

enum class HeadPart : uint8_t { none, query, gate, key, value };  // within each query group

// Names below "layers.N." here and below "decoder.layers.N." there; outside of layers, whole names.
struct MegatronName {
  std::string_view witan, megatron;
  HeadPart part = HeadPart::none;
  bool depthwise = false;  // [C, taps] here, [C, 1, taps] there, as torch.nn.Conv1d has it
};

// Its weight is not centred at zero here where those of other norms are (apply_layernorm_1p), and there it is.
constexpr std::string_view kDeltaNorm = "gated_delta.norm.weight";

constexpr MegatronName taps(std::string_view witan, std::string_view megatron) {
  return {.witan = witan, .megatron = megatron, .depthwise = true};
}

constexpr MegatronName kMegatronModel[] = {
    {"embedding.weight", kMegatronEmbedding},
    {"position_embedding.weight", "embedding.position_embeddings.weight"},
    {"final_norm.weight", "decoder.final_layernorm.weight"},
    {"final_norm.bias", "decoder.final_layernorm.bias"},
    {"head.weight", kMegatronHead},
};

constexpr MegatronName kMegatronLayer[] = {
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention_norm.bias", "input_layernorm.bias"},
    {"mlp_norm.weight", "pre_mlp_layernorm.weight"},
    {"mlp_norm.bias", "pre_mlp_layernorm.bias"},
    {"attention.q_proj.weight", "self_attention.linear_qkv.weight", HeadPart::query},
    {"attention.k_proj.weight", "self_attention.linear_qkv.weight", HeadPart::key},
    {"attention.v_proj.weight", "self_attention.linear_qkv.weight", HeadPart::value},
    {"attention.q_proj.bias", "self_attention.linear_qkv.bias", HeadPart::query},
    {"attention.k_proj.bias", "self_attention.linear_qkv.bias", HeadPart::key},
    {"attention.v_proj.bias", "self_attention.linear_qkv.bias", HeadPart::value},
    {"attention.g_proj.weight", "self_attention.linear_qkv.weight", HeadPart::gate},
    {"attention.g_proj.bias", "self_attention.linear_qkv.bias", HeadPart::gate},
    {"attention.o_proj.weight", "self_attention.linear_proj.weight"},
    {"attention.o_proj.bias", "self_attention.linear_proj.bias"},
    {"attention.q_norm.weight", "self_attention.q_layernorm.weight"},
    {"attention.k_norm.weight", "self_attention.k_layernorm.weight"},
    {"attention.sinks", "self_attention.core_attention.softmax_offset"},
    {"attention.q_a_proj.weight", "self_attention.linear_q_down_proj.weight"},
    {"attention.q_a_layernorm.weight", "self_attention.q_layernorm.weight"},
    {"attention.q_b_proj.weight", "self_attention.linear_q_up_proj.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "self_attention.linear_kv_down_proj.weight"},
    {"attention.kv_a_layernorm.weight", "self_attention.kv_layernorm.weight"},
    {"attention.kv_b_proj.weight", "self_attention.linear_kv_up_proj.weight"},
    {"mlp.gate_up_proj.weight", "mlp.linear_fc1.weight"},
    {"mlp.gate_up_proj.bias", "mlp.linear_fc1.bias"},
    {"mlp.up_proj.weight", "mlp.linear_fc1.weight"},
    {"mlp.up_proj.bias", "mlp.linear_fc1.bias"},
    {"mlp.down_proj.weight", "mlp.linear_fc2.weight"},
    {"mlp.down_proj.bias", "mlp.linear_fc2.bias"},
    {"moe.router.weight", "mlp.router.weight"},
    {"moe.router.bias", "mlp.router.bias"},
    {"moe.router.expert_bias", "mlp.router.expert_bias"},
    {"moe.experts.gate_up_proj", "mlp.experts.experts.linear_fc1.weight"},
    {"moe.experts.up_proj", "mlp.experts.experts.linear_fc1.weight"},
    {"moe.experts.down_proj", "mlp.experts.experts.linear_fc2.weight"},
    {"moe.experts.gate_up_proj_bias", "mlp.experts.experts.linear_fc1.bias"},
    {"moe.experts.up_proj_bias", "mlp.experts.experts.linear_fc1.bias"},
    {"moe.experts.down_proj_bias", "mlp.experts.experts.linear_fc2.bias"},
    {"moe.shared_experts.gate_up_proj.weight", "mlp.shared_experts.linear_fc1.weight"},
    {"moe.shared_experts.up_proj.weight", "mlp.shared_experts.linear_fc1.weight"},
    {"moe.shared_experts.down_proj.weight", "mlp.shared_experts.linear_fc2.weight"},
    {"moe.shared_experts.gate.weight", "mlp.shared_experts.gate_weight"},
    {"moe.fc1_latent_proj.weight", "mlp.fc1_latent_proj.weight"},
    {"moe.fc2_latent_proj.weight", "mlp.fc2_latent_proj.weight"},
    // Both recurrent mixers have one input projection and one convolution, whose parts checkpoints hold apart.
    {"mamba2.z_proj.weight", "mixer.in_proj.weight.z"},
    {"mamba2.x_proj.weight", "mixer.in_proj.weight.x"},
    {"mamba2.B_proj.weight", "mixer.in_proj.weight.B"},
    {"mamba2.C_proj.weight", "mixer.in_proj.weight.C"},
    {"mamba2.dt_proj.weight", "mixer.in_proj.weight.dt"},
    taps("mamba2.x_conv.weight", "mixer.conv1d.weight.x"),
    taps("mamba2.B_conv.weight", "mixer.conv1d.weight.B"),
    taps("mamba2.C_conv.weight", "mixer.conv1d.weight.C"),
    {"mamba2.x_conv.bias", "mixer.conv1d.bias.x"},
    {"mamba2.B_conv.bias", "mixer.conv1d.bias.B"},
    {"mamba2.C_conv.bias", "mixer.conv1d.bias.C"},
    {"mamba2.A_log", "mixer.A_log"},
    {"mamba2.D", "mixer.D"},
    {"mamba2.dt_bias", "mixer.dt_bias"},
    {"mamba2.norm.weight", "mixer.norm.weight"},
    {"mamba2.o_proj.weight", "mixer.out_proj.weight"},
    {"gated_delta.q_proj.weight", "self_attention.in_proj.weight.query"},
    {"gated_delta.k_proj.weight", "self_attention.in_proj.weight.key"},
    {"gated_delta.v_proj.weight", "self_attention.in_proj.weight.value"},
    {"gated_delta.z_proj.weight", "self_attention.in_proj.weight.z"},
    {"gated_delta.b_proj.weight", "self_attention.in_proj.weight.beta"},
    {"gated_delta.a_proj.weight", "self_attention.in_proj.weight.alpha"},
    taps("gated_delta.q_conv.weight", "self_attention.conv1d.weight.query"),
    taps("gated_delta.k_conv.weight", "self_attention.conv1d.weight.key"),
    taps("gated_delta.v_conv.weight", "self_attention.conv1d.weight.value"),
    {"gated_delta.A_log", "self_attention.A_log"},
    {"gated_delta.dt_bias", "self_attention.dt_bias"},
    {kDeltaNorm, "self_attention.out_norm.weight"},
    {"gated_delta.o_proj.weight", "self_attention.out_proj.weight"},
};

// A stack of layers of one part each has another name for its last norm.
constexpr MegatronName kHybridNorm = {"final_norm.weight", "decoder.final_norm.weight"};

// In latent attention without a query latent (q_lora_rank 0) one projection computes the queries.
constexpr MegatronName kLatentQueries = {"attention.q_proj.weight", "self_attention.linear_q_proj.weight"};

const MegatronName* find_name(const ModelConfig& model, std::string_view rest, bool of_layer) {
  if (of_layer && model.attention.multi_latent_attention && rest == kLatentQueries.witan) return &kLatentQueries;
  if (!of_layer && model.mamba.any() && rest == kHybridNorm.witan) return &kHybridNorm;
  const auto in = [&](const auto& table) -> const MegatronName* {
    const auto found = std::ranges::find(table, rest, &MegatronName::witan);
    return found == std::end(table) ? nullptr : &*found;
  };
  return of_layer ? in(kMegatronLayer) : in(kMegatronModel);
}

// A tensor's counterpart: its name, its shape, and the piece that they share. Nothing for Witan's own buffers.
using MegatronPiece = std::function<void(const std::string& name, const Shape& shape, const SharedBox& piece)>;

// Returns where a part begins in a query group, which has `both` rows of queries and their gate before keys and values.
int64_t first_in_group(HeadPart part, int64_t queries, int64_t both, int64_t keys) {
  switch (part) {
    case HeadPart::gate:
      return queries;
    case HeadPart::key:
      return both;
    case HeadPart::value:
      return both + keys;
    default:
      return 0;
  }
}

void visit_megatron(const ModelConfig& model, const ModelTensor& tensor, int64_t vocabulary,
                    const MegatronPiece& visit) {
  constexpr std::string_view kOwn = "layers.";
  std::string_view rest = tensor.name;
  std::string there;
  if (rest.starts_with(kOwn)) {
    const size_t dot = rest.find('.', kOwn.size());
    there = cat("decoder.", rest.substr(0, dot + 1));
    rest.remove_prefix(dot + 1);
  }
  const MegatronName* name = find_name(model, rest, !there.empty());
  if (!name && tensor.buffer) return;
  require<ConfigError>(name != nullptr, "this model has ", tensor.name, ' ', tensor.shape,
                       ", which Megatron-Core has no place for: it cannot be written as one of its models");
  there += name->megatron;
  SharedBox piece;
  piece.to.name = tensor.name;
  piece.from.name = there;
  const bool of_vocabulary = rest == "embedding.weight" || rest == "head.weight";
  Shape shape = of_vocabulary ? tensor.shape.with(0, vocabulary) : tensor.shape;
  if (name->depthwise) shape = {shape[0], 1, shape[1]};
  if (rest == kDeltaNorm && model.norm.apply_layernorm_1p) piece.values = ValueMap::plus_one;
  if (name->part == HeadPart::none) {
    piece.sizes = {1, 1, 1, shape.elements()};
    piece.to.strides = piece.from.strides = {0, 0, 0, 1};
  } else {
    const AttentionConfig& attention = model.attention;
    const int64_t groups = attention.num_query_groups, width = tensor.shape.dims() == 1 ? 1 : tensor.shape.last();
    const int64_t queries = attention.num_attention_heads / groups * attention.qk_head_dim(model.hidden_size) * width,
                  keys = attention.qk_head_dim(model.hidden_size) * width,
                  both = attention.attention_output_gate ? 2 * queries : queries, of_group = both + 2 * keys;
    require<ConfigError>(attention.value_head_dim(model.hidden_size) == attention.qk_head_dim(model.hidden_size),
                         "v_head_dim = ", attention.v_head_dim,
                         ": Megatron-Core's queries and values have heads of one "
                         "size, except in latent attention");
    const int64_t own = name->part == HeadPart::query || name->part == HeadPart::gate ? queries : keys;
    piece.sizes = {1, 1, groups, own};
    piece.to.strides = {0, 0, own, 1};
    piece.from.strides = {0, 0, of_group, 1};
    piece.from.first = first_in_group(name->part, queries, both, keys);
    shape = tensor.shape.with(0, of_group * groups / width);
  }
  piece.normalise();
  visit(there, shape, piece);
}

}  // namespace

std::vector<Link> link_megatron(const ModelConfig& model, const std::vector<ModelTensor>& tensors, int64_t vocabulary) {
  std::vector<Link> links;
  for (const ModelTensor& tensor : tensors) {
    Link link{tensor.name, tensor.shape, {}, 0};
    if (tensor.name == "embedding.weight" || tensor.name == "head.weight")
      link.padding = (tensor.shape[0] - vocabulary) * tensor.shape[1];
    visit_megatron(model, tensor, vocabulary,
                   [&](const std::string&, const Shape&, const SharedBox& piece) { link.pieces.push_back(piece); });
    if (link.pieces.empty()) continue;
    check_cover(link, "megatron");
    links.push_back(std::move(link));
  }
  return links;
}

std::vector<std::pair<std::string, Shape>> megatron_tensors(const ModelConfig& model,
                                                            const std::vector<ModelTensor>& tensors,
                                                            int64_t vocabulary) {
  std::vector<std::pair<std::string, Shape>> others;
  std::set<std::string> seen;
  for (const ModelTensor& tensor : tensors)
    visit_megatron(model, tensor, vocabulary, [&](const std::string& name, const Shape& shape, const SharedBox&) {
      if (seen.insert(name).second) others.emplace_back(name, shape);
    });
  return others;
}

}  // namespace witan
