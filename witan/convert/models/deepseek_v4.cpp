// DeepSeek-V4: compressed attention, parallel residual streams, and experts of the first layers by a table. Names are
// those of folders that transformers saves.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kWindowAlone = "sliding_attention", *kChosenEntries = "compressed_sparse_attention",
                     *kAllEntries = "heavily_compressed_attention", *kTableOfExperts = "hash_moe",
                     *kRoutedExperts = "moe";

constexpr TensorRule kV4Rules[] = {
    {"embedding.weight", "embed_tokens.weight"},
    {"final_norm.weight", "norm.weight"},
    {"head.weight", "/head.weight"},
    {"head_hc.fn", "hc_head.hc_fn"},
    {"head_hc.base", "hc_head.hc_base"},
    {"head_hc.scale", "hc_head.hc_scale"},
    {"attention_norm.weight", "layers.{l}.attn_norm.weight"},
    {"mlp_norm.weight", "layers.{l}.ffn_norm.weight"},
    {"attention_hc.fn", "layers.{l}.hc_attn_fn"},
    {"attention_hc.base", "layers.{l}.hc_attn_base"},
    {"attention_hc.scale", "layers.{l}.hc_attn_scale"},
    {"mlp_hc.fn", "layers.{l}.hc_ffn_fn"},
    {"mlp_hc.base", "layers.{l}.hc_ffn_base"},
    {"mlp_hc.scale", "layers.{l}.hc_ffn_scale"},
    {"attention.q_a_proj.weight", "layers.{l}.attn.wq_a.weight"},
    {"attention.q_a_norm.weight", "layers.{l}.attn.q_norm.weight"},
    {"attention.q_b_proj.weight", "layers.{l}.attn.wq_b.weight"},
    {"attention.kv_proj.weight", "layers.{l}.attn.wkv.weight"},
    {"attention.kv_norm.weight", "layers.{l}.attn.norm.weight"},
    {"attention.o_a_proj.weight", "layers.{l}.attn.wo_a.weight"},
    {"attention.o_b_proj.weight", "layers.{l}.attn.wo_b.weight"},
    {"attention.sinks", "layers.{l}.attn.attn_sink"},
    {"attention.compressor.kv_proj.weight", "layers.{l}.attn.compressor.wkv.weight"},
    {"attention.compressor.gate_proj.weight", "layers.{l}.attn.compressor.wgate.weight"},
    {"attention.compressor.position_bias", "layers.{l}.attn.compressor.ape"},
    {"attention.compressor.kv_norm.weight", "layers.{l}.attn.compressor.norm.weight"},
    {"attention.indexer.q_b_proj.weight", "layers.{l}.attn.indexer.wq_b.weight"},
    {"attention.indexer.weights_proj.weight", "layers.{l}.attn.indexer.weights_proj.weight"},
    {"attention.indexer.compressor.kv_proj.weight", "layers.{l}.attn.indexer.compressor.wkv.weight"},
    {"attention.indexer.compressor.gate_proj.weight", "layers.{l}.attn.indexer.compressor.wgate.weight"},
    {"attention.indexer.compressor.position_bias", "layers.{l}.attn.indexer.compressor.ape"},
    {"attention.indexer.compressor.kv_norm.weight", "layers.{l}.attn.indexer.compressor.norm.weight"},
    {"moe.router.weight", "layers.{l}.ffn.gate.weight"},
    {"moe.router.expert_bias", "layers.{l}.ffn.gate.bias"},
    {"moe.router.token_experts", "layers.{l}.ffn.gate.tid2eid"},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.ffn.shared_experts.w1.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.ffn.shared_experts.w3.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.ffn.shared_experts.w2.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.ffn.experts.{e}.w1.weight",
     .part = 0,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.ffn.experts.{e}.w3.weight",
     .part = 1,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.ffn.experts.{e}.w2.weight",
     .storage = ExpertStorage::single},
};

// ---- Attention

// The type of each layer. A published list is longer: entries after these belong to modules of multi-token prediction,
// which transformers does not read either.
std::vector<std::string> types_of(HfReader& in, const char* key, std::initializer_list<const char*> known) {
  const Json* const list = in.keys.find(key);
  if (list == nullptr || !list->is_array() || static_cast<int64_t>(list->size()) < in.layers)
    in.keys.refuse(key, "must be a list of the layers' types");
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < in.layers; ++layer) {
    const Json& type = (*list)[static_cast<size_t>(layer)];
    if (std::ranges::none_of(known, [&](const char* one) { return type == one; }))
      in.keys.refuse(key, "Witan does not know the type of one of the layers");
    types.push_back(type.get<std::string>());
  }
  return types;
}

// V4-Pro's: after the first two layers every second one chooses its entries.
std::vector<std::string> alternating_types(int64_t layers) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < layers; ++layer)
    types.emplace_back(layer > 2 && layer % 2 == 1 ? kChosenEntries : kAllEntries);
  return types;
}

// The published folders' compress_ratios: 0, 4 or 128 tokens for each layer.
void read_older_entries(HfReader& in) {
  const Json* const list = in.keys.find("compress_ratios");
  in.keys.find("compress_rates");
  if (!list->is_array() || static_cast<int64_t>(list->size()) < in.layers)
    in.keys.refuse("compress_ratios", "must be a list of the tokens of an entry in each layer");
  std::string ratios = "[";
  for (int64_t layer = 0; layer < in.layers; ++layer) {
    const Json& ratio = (*list)[static_cast<size_t>(layer)];
    if (ratio != 0 && ratio != 4 && ratio != 128) in.keys.refuse("compress_ratios", "a layer has 0, 4 or 128");
    ratios += cat(layer > 0 ? "," : "", ratio.get<int64_t>());
  }
  in.to.set("csa_compress_ratios", ratios + "]");
  in.to.set("csa_sparse_ratio", int64_t{4});
}

// Tokens of an entry in each layer.
void read_entries(HfReader& in) {
  if (in.keys.has("compress_ratios") && !in.keys.has("layer_types")) return read_older_entries(in);
  const auto types = in.keys.has("layer_types")
                         ? types_of(in, "layer_types", {kWindowAlone, kChosenEntries, kAllEntries})
                         : alternating_types(in.layers);
  const Json* const object = in.keys.find("compress_rates");
  if (object == nullptr) in.keys.refuse("compress_rates", "must give the tokens of an entry for each type of layers");
  HfKeys rates(*object, cat(in.keys.where(), ": compress_rates"));
  const int64_t sparse = rates.integer(kChosenEntries, 4), heavy = rates.integer(kAllEntries, 128);
  rates.finish();
  if (sparse == heavy)
    in.keys.refuse("compress_rates", "Witan tells the two types of layers by their rates, which must differ");
  std::string ratios = "[";
  for (const std::string& type : types)
    ratios += cat(ratios.size() > 1 ? "," : "", type == kChosenEntries ? sparse : type == kAllEntries ? heavy : 0);
  in.to.set("csa_compress_ratios", ratios + "]");
  in.to.set("csa_sparse_ratio", sparse);
}

// The rotation of layers with entries, whose base is a key of its own.
void read_stretch(HfReader& in, Json rope, double theta) {
  const double of_windows = in.to.model().attention.rotary_base;
  for (const char* key : {"partial_rotary_factor", "attention_factor"}) rope.erase(key);
  const Json alone = {{"rope_theta", theta}, {"rope_parameters", std::move(rope)}};
  HfKeys keys(alone, cat(in.keys.where(), ": rope_parameters: compress"));
  read_hf_rope(keys, in.to, in.model.positions);
  in.to.set("csa_compress_rotary_base", in.to.model().attention.rotary_base);
  in.to.set("rotary_base", of_windows);
}

// Layers with entries rotate by "compress", which YaRN may stretch, the others by "main".
void read_rotations(HfReader& in, int64_t head_dim) {
  const double theta = in.keys.number("rope_theta"), compressed = in.keys.number("compress_rope_theta");
  const auto of_share = [&](double share) { return static_cast<int64_t>(static_cast<double>(head_dim) * share); };
  const bool older = !in.keys.has("partial_rotary_factor") && in.keys.has("qk_rope_head_dim");
  const double share = in.keys.number("partial_rotary_factor");
  const int64_t named = in.keys.integer("qk_rope_head_dim", 0), turning = older ? named : of_share(share);
  in.to.set("qk_pos_emb_head_dim", turning);
  const Json main = {{"rope_theta", theta}}, compress = {{"rope_theta", compressed}}, none = Json::object();
  const Json* const given = in.keys.find("rope_parameters");
  const std::string where = cat(in.keys.where(), ": rope_parameters");
  HfKeys kinds(given ? *given : none, where);
  const auto of_kind = [&](const char* kind, const Json& otherwise) {
    const Json* const object = kinds.find(kind);
    return object ? *object : otherwise;
  };
  const Json of_windows = of_kind("main", main), of_entries = of_kind("compress", compress);
  kinds.finish();
  HfKeys windows(of_windows, where + ": main"), entries(of_entries, where + ": compress");
  for (HfKeys* kind : {&windows, &entries})
    if (kind->has("partial_rotary_factor") && of_share(kind->number("partial_rotary_factor")) != turning)
      kind->refuse("partial_rotary_factor", "all layers of a model rotate as many channels");
  windows.only("rope_type", "default", "layers without entries are not stretched");
  entries.only("attention_factor", 1.0, "Witan's compressed attention has no other");
  in.to.set("rotary_base", windows.number("rope_theta", theta));
  windows.finish();
  read_stretch(in, of_entries, compressed);
}

void read_attention(HfReader& in) {
  in.to.set("experimental_attention_variant", CompressedAttentionConfig::kVariant);
  in.to.set("multi_latent_attention", true);
  in.to.set("q_lora_rank", in.keys.integer("q_lora_rank"));
  const int64_t head_dim = in.keys.integer("head_dim");
  in.to.set("v_head_dim", head_dim);
  in.to.set("o_groups", in.keys.integer("o_groups"));
  in.to.set("o_lora_rank", in.keys.integer("o_lora_rank"));
  in.to.set("csa_window_size", in.keys.integer("sliding_window"));
  in.to.set("dsa_indexer_n_heads", in.keys.integer("index_n_heads"));
  in.to.set("dsa_indexer_head_dim", in.keys.integer("index_head_dim"));
  in.to.set("dsa_indexer_topk", in.keys.integer("index_topk"));
  in.keys.only("num_key_value_heads", 1, "all heads share a key");
  in.no_attention_bias("Witan's compressed attention has no biases");
  read_rotations(in, head_dim);
  read_entries(in);
}

// ---- Experts and streams

void read_experts(HfReader& in) {
  in.experts(in.keys.integer("n_routed_experts"), in.keys.integer("num_experts_per_tok"));
  const int64_t width = in.keys.integer("moe_intermediate_size");
  in.to.set("moe_ffn_hidden_size", width);
  in.to.set("moe_shared_expert_intermediate_size", width);
  in.keys.only("n_shared_experts", 1, "transformers builds one shared expert, whatever this key says");
  in.to.set("activation_func_clamp_value", in.bound("swiglu_limit"));
  const std::string scores = in.keys.text("scoring_func");
  if (scores != "sqrtsoftplus" && scores != "sigmoid")
    in.keys.refuse("scoring_func", "Witan reads sqrtsoftplus and sigmoid");
  in.to.set("moe_router_score_function", scores);
  in.to.set("moe_router_enable_expert_bias", true);
  in.keys.only("norm_topk_prob", true, "transformers divides by the sum, whatever this says");
  if (const double scale = in.keys.number("routed_scaling_factor"); scale != 1)
    in.to.set("moe_router_topk_scaling_factor", scale);
  in.keys.only("router_jitter_noise", 0.0, "transformers adds none in models of this type");
  const int64_t tables = in.keys.integer("num_hash_layers", 3);
  if (!in.keys.has("mlp_layer_types")) {
    in.to.set("moe_n_hash_layers", std::min(tables, in.layers));
    return;
  }
  const auto types = types_of(in, "mlp_layer_types", {kTableOfExperts, kRoutedExperts});
  const auto first = std::ranges::find(types, kRoutedExperts);
  if (std::find(first, types.end(), kTableOfExperts) != types.end())
    in.keys.refuse("mlp_layer_types", "layers with a table of experts must be the first ones");
  in.to.set("moe_n_hash_layers", static_cast<int64_t>(first - types.begin()));
}

void read_deepseek_v4(HfReader& in) {
  in.sizes(HfHeads::latent);
  in.activation();
  in.no_mlp_bias();
  read_attention(in);
  read_experts(in);
  const int64_t streams = in.keys.integer("hc_mult");
  if (streams < 2) in.keys.refuse("hc_mult", "hyper-connections join at least 2 residual streams");
  in.to.set("num_residual_streams", streams);
  in.to.set("mhc_sinkhorn_iterations", in.keys.integer("hc_sinkhorn_iters"));
  in.to.set("mhc_epsilon", in.keys.number("hc_eps"));
  in.keys.find("num_nextn_predict_layers");  // transformers does without them
}

void write_deepseek_v4(HfWriter& to) {
  const ModelConfig& model = to.model;
  const AttentionConfig& attention = model.attention;
  const CompressedAttentionConfig& compressed = model.compressed_attention;
  HfWriter::Out& out = to.out;
  to.sizes(HfHeads::latent);
  out.erase("intermediate_size");
  out["num_key_value_heads"] = 1;
  out["head_dim"] = attention.v_head_dim;
  out["q_lora_rank"] = attention.q_lora_rank;
  out["o_groups"] = compressed.o_groups;
  out["o_lora_rank"] = compressed.o_lora_rank;
  out["sliding_window"] = compressed.csa_window_size;
  out["index_n_heads"] = model.sparse_attention.dsa_indexer_n_heads;
  out["index_head_dim"] = model.sparse_attention.dsa_indexer_head_dim;
  out["index_topk"] = model.sparse_attention.dsa_indexer_topk;
  const double share = static_cast<double>(attention.qk_pos_emb_head_dim) /
                       static_cast<double>(std::max<int64_t>(attention.v_head_dim, 1));
  out["partial_rotary_factor"] = share;
  AttentionConfig of_entries = attention;
  of_entries.rotary_base = compressed.csa_compress_rotary_base;
  HfWriter::Out main = {{"rope_theta", attention.rotary_base}, {"rope_type", "default"}},
                compress = hf_rope(of_entries);
  if (compress["rope_type"] == "yarn") compress["attention_factor"] = 1.0;
  for (HfWriter::Out* one : {&main, &compress}) (*one)["partial_rotary_factor"] = share;
  out["rope_theta"] = attention.rotary_base;
  out["compress_rope_theta"] = compressed.csa_compress_rotary_base;
  out["rope_parameters"] = {{"main", main}, {"compress", compress}};
  int64_t heavy = 128;
  HfWriter::Out types = HfWriter::Out::array(), experts = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers) {
    const auto* const spec = std::get_if<CompressedSpec>(&layer.mixer);
    if (spec == nullptr) continue;
    if (spec->ratio > 0 && !spec->sparse) heavy = spec->ratio;
    types.push_back(spec->sparse ? kChosenEntries : spec->ratio > 0 ? kAllEntries : kWindowAlone);
    experts.push_back(layer.table_of_experts ? kTableOfExperts : kRoutedExperts);
  }
  out["layer_types"] = types;
  out["mlp_layer_types"] = experts;
  out["compress_rates"] = {{kChosenEntries, compressed.csa_sparse_ratio}, {kAllEntries, heavy}};
  to.experts("n_routed_experts", "moe_intermediate_size");
  out["n_shared_experts"] = 1;
  out["scoring_func"] = model.moe.moe_router_score_function;
  out["norm_topk_prob"] = true;
  out["routed_scaling_factor"] = model.moe.moe_router_topk_scaling_factor;
  out["swiglu_limit"] = model.mlp.activation_func_clamp_value;
  out["hc_mult"] = model.streams.num_residual_streams;
  out["hc_sinkhorn_iters"] = model.streams.mhc_sinkhorn_iterations;
  out["hc_eps"] = model.streams.mhc_epsilon;
}

// ---- GGUF files

constexpr GgufRule kGgufV4[] = {
    {"head_hc.fn", "output_hc_fn.weight"},
    {"head_hc.base", "output_hc_base.weight"},
    {"head_hc.scale", "output_hc_scale.weight"},
    {"attention_hc.fn", "hc_attn_fn.weight"},
    {"attention_hc.base", "hc_attn_base.weight"},
    {"attention_hc.scale", "hc_attn_scale.weight"},
    {"mlp_hc.fn", "hc_ffn_fn.weight"},
    {"mlp_hc.base", "hc_ffn_base.weight"},
    {"mlp_hc.scale", "hc_ffn_scale.weight"},
    {"attention.q_a_proj.weight", "attn_q_a.weight"},
    {"attention.q_a_norm.weight", "attn_q_a_norm.weight"},
    {"attention.q_b_proj.weight", "attn_q_b.weight"},
    {"attention.kv_proj.weight", "attn_kv.weight"},
    {"attention.kv_norm.weight", "attn_kv_a_norm.weight"},
    {"attention.o_a_proj.weight", "attn_output_a.weight"},
    {"attention.o_b_proj.weight", "attn_output_b.weight"},
    {"attention.sinks", "attn_sinks.weight"},
    {"attention.compressor.kv_proj.weight", "attn_compressor_kv.weight"},
    {"attention.compressor.gate_proj.weight", "attn_compressor_gate.weight"},
    {"attention.compressor.position_bias", "attn_compressor_ape.weight"},
    {"attention.compressor.kv_norm.weight", "attn_compressor_norm.weight"},
    {"attention.indexer.q_b_proj.weight", "indexer.attn_q_b.weight"},
    {"attention.indexer.weights_proj.weight", "indexer.proj.weight"},
    {"attention.indexer.compressor.kv_proj.weight", "indexer_compressor_kv.weight"},
    {"attention.indexer.compressor.gate_proj.weight", "indexer_compressor_gate.weight"},
    {"attention.indexer.compressor.position_bias", "indexer_compressor_ape.weight"},
    {"attention.indexer.compressor.kv_norm.weight", "indexer_compressor_norm.weight"},
    {"moe.router.token_experts", "ffn_gate_tid2eid.weight"},
};

constexpr int64_t kSqrtSoftplusGate = 4;  // expert_gating_func
constexpr int64_t kGgufSparseRatio = 4, kGgufHeavyRatio = 128;

// The bound of all layers' experts.
double read_gguf_v4_bound(GgufReader& in) {
  const GgufValue* const values = in.find("swiglu_clamp_exp");
  require<ConfigError>(values != nullptr && !values->numbers.empty(), in.source(), ": ", in.key("swiglu_clamp_exp"),
                       " is missing");
  const double bound = values->numbers.front();
  for (const char* name : {"swiglu_clamp_exp", "swiglu_clamp_shexp"})
    if (const GgufValue* of_layers = in.find(name))
      for (const double other : of_layers->numbers)
        require<ConfigError>(other == bound, in.source(), ": ", in.key(name), " has ", bound, " and ", other,
                             ": Witan's experts have one bound in all layers");
  return bound;
}

// Layers with entries rotate by a base of their own, which YaRN may stretch.
void read_gguf_v4_rotations(GgufReader& in) {
  in.rope();
  Json compress = in.out["rope_parameters"];
  const Json main = {{"rope_theta", compress.at("rope_theta")}, {"rope_type", "default"}};
  compress["rope_theta"] = in.number("attention.compress_rope_freq_base");
  in.out["rope_parameters"] = {{"main", main}, {"compress", compress}};
  in.out["rope_theta"] = main.at("rope_theta");
  in.out["compress_rope_theta"] = compress.at("rope_theta");
}

void read_gguf_v4(GgufReader& in) {
  in.sizes(GgufWidths::of_layers);
  in.find("feed_forward_length");  // no layer has an MLP without experts
  in.only("attention.head_count_kv", 1, "all heads share a key");
  const int64_t channels = in.integer("attention.key_length");
  in.only("attention.value_length", static_cast<double>(channels), "a key is its value");
  in.out["head_dim"] = channels;
  in.out["qk_rope_head_dim"] = in.integer("rope.dimension_count");
  read_gguf_v4_rotations(in);
  in.out["q_lora_rank"] = in.integer("attention.q_lora_rank");
  in.out["o_groups"] = in.integer("attention.output_group_count");
  in.out["o_lora_rank"] = in.integer("attention.output_lora_rank");
  in.out["sliding_window"] = in.integer("attention.sliding_window");
  in.out["index_n_heads"] = in.integer("attention.indexer.head_count");
  in.out["index_head_dim"] = in.integer("attention.indexer.key_length");
  in.out["index_topk"] = in.integer("attention.indexer.top_k");
  in.out["compress_ratios"] = in.find("attention.compress_ratios") == nullptr
                                  ? Json::array()
                                  : Json(in.find("attention.compress_ratios")->integers);
  in.routed_experts();
  for (const char* ungrouped : {"first_k_dense_replace", "n_group", "topk_group"}) {
    in.out.erase(ungrouped);
  }
  for (const char* absent : {"expert_group_count", "leading_dense_block_count"})
    in.only(absent, 0, "models of this type have neither groups of experts nor layers without experts");
  in.only("expert_gating_func", static_cast<double>(kSqrtSoftplusGate), "llama.cpp loads no other scores");
  in.out["num_hash_layers"] = in.integer("hash_layer_count");
  in.out["swiglu_limit"] = read_gguf_v4_bound(in);
  in.out["hc_mult"] = in.integer("hyper_connection.count");
  in.out["hc_sinkhorn_iters"] = in.integer("hyper_connection.sinkhorn_iterations");
  in.out["hc_eps"] = in.number("hyper_connection.epsilon");
  in.find("embedding_length_out");  // that of all streams
}

void write_gguf_v4_rotations(GgufWriter& to) {
  const Json& rotations = to.hf.at("rope_parameters");
  to.rope(rotations.at("compress"));
  to.put_real("attention.compress_rope_freq_base", to.hf.at("compress_rope_theta").get<double>());
  to.put_real("rope.freq_base", to.hf.at("rope_theta").get<double>());
  to.put("rope.dimension_count", to.model.attention.qk_pos_emb_head_dim);
}

void write_gguf_v4_ratios(GgufWriter& to) {
  const Json& rates = to.hf.at("compress_rates");
  std::vector<int64_t> ratios;
  for (const Json& type : to.hf.at("layer_types")) {
    ratios.push_back(type == kWindowAlone ? 0 : rates.at(type.get<std::string>()).get<int64_t>());
    require<ConfigError>(
        type == kWindowAlone || ratios.back() == (type == kChosenEntries ? kGgufSparseRatio : kGgufHeavyRatio),
        "csa_compress_ratios = ", to.model.compressed_attention.csa_compress_ratios,
        ": llama.cpp's model of type deepseek4 has entries of 4 tokens that are chosen, and of 128 "
        "tokens: export --format hf");
  }
  to.put_list("attention.compress_ratios", std::move(ratios));
}

void write_gguf_v4(GgufWriter& to) {
  const Json& hf = to.hf;
  to.sizes();
  to.put("attention.head_count_kv", 1);
  for (const char* each : {"attention.key_length", "attention.value_length"}) to.put(each, "head_dim");
  write_gguf_v4_rotations(to);
  to.put("attention.q_lora_rank", "q_lora_rank");
  to.put("attention.output_group_count", "o_groups");
  to.put("attention.output_lora_rank", "o_lora_rank");
  to.put("attention.sliding_window", "sliding_window");
  to.put("attention.indexer.head_count", "index_n_heads");
  to.put("attention.indexer.key_length", "index_head_dim");
  to.put("attention.indexer.top_k", "index_topk");
  write_gguf_v4_ratios(to);
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_count", "n_shared_experts");
  to.put_real("expert_weights_scale", hf.at("routed_scaling_factor").get<double>());
  to.out.put_flag(to.key("expert_weights_norm"), true);
  to.put("expert_gating_func", hf.at("scoring_func") == "sigmoid" ? kSigmoidGate : kSqrtSoftplusGate);
  to.put("hash_layer_count", std::ranges::count(hf.at("mlp_layer_types"), kTableOfExperts));
  const std::vector<double> bounds(hf.at("layer_types").size(), hf.at("swiglu_limit").get<double>());
  for (const char* each : {"swiglu_clamp_exp", "swiglu_clamp_shexp"})
    to.out.put(to.key(each), {.type = GgufType::f32, .array = true, .numbers = bounds});
  to.put("hyper_connection.count", "hc_mult");
  to.put("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters");
  to.put_real("hyper_connection.epsilon", hf.at("hc_eps").get<double>());
  to.put("embedding_length_out", hf.at("hc_mult").get<int64_t>() * hf.at("hidden_size").get<int64_t>());
}

}  // namespace

std::vector<Architecture> deepseek_v4() {
  Architecture v4{"deepseek_v4", "DeepseekV4ForCausalLM", "model.", {kV4Rules}};
  v4.defaults = {R"({"vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
      "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
      "num_experts_per_tok": 6, "n_routed_experts": 256, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus",
      "norm_topk_prob": true, "routed_scaling_factor": 1.5, "max_position_embeddings": 1048576, "rope_theta": 10000.0,
      "compress_rope_theta": 160000.0, "compress_rates": {"compressed_sparse_attention": 4,
      "heavily_compressed_attention": 128}, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
      "swiglu_limit": 10.0, "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
      "index_head_dim": 128, "index_topk": 512, "num_nextn_predict_layers": 1, "output_router_logits": false,
      "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "partial_rotary_factor": 0.125, "attention_bias": false,
      "mlp_bias": false, "attention_dropout": 0.0})"};
  v4.read = read_deepseek_v4;
  v4.write = write_deepseek_v4;
  v4.side = "model.mtp.";
  v4.modules = {{".attn.wq_a.", ".self_attn.q_a_proj."},
                {".attn.wq_b.", ".self_attn.q_b_proj."},
                {".attn.indexer.wq_b.", ".self_attn.compressor.indexer.q_b_proj."},
                {".ffn.shared_experts.w1.", ".mlp.shared_experts.gate_proj."},
                {".ffn.shared_experts.w3.", ".mlp.shared_experts.up_proj."},
                {".ffn.shared_experts.w2.", ".mlp.shared_experts.down_proj."},
                {".ffn.experts.{e}.w1.weight", ".mlp.experts.gate_up_proj"},
                {".ffn.experts.{e}.w2.weight", ".mlp.experts.down_proj"}};
  v4.gguf = {.name = "deepseek4",
             .rules = {kGgufCommon, kGgufNorms, kGgufV4},
             .read = read_gguf_v4,
             .write = write_gguf_v4,
             .untied = true};
  return {v4};
}

}  // namespace witan::models
