// OLMoE, FlexOlmo, OLMo 2, and OLMo 3, whose windowed layers rotate as they did before the context was stretched.
#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

// OLMo 2 and 3 have norms after attention and MLP.
constexpr TensorRule kPostNormRules[] = {
    {"attention_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"mlp_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"},
};
constexpr GgufRule kGgufPostNorms[] = {
    {"attention_norm.weight", "post_attention_norm.weight"},
    {"mlp_norm.weight", "post_ffw_norm.weight"},
};

// ---- OLMoE

void read_olmoe_layers(HfReader& in) {
  in.llama_like();
  in.experts();
  in.softmax_router();
  in.to.set("qk_layernorm", true);
  in.to.set("qk_layernorm_full_width", true);
  in.attention_bias();
  in.no_mlp_bias();
  in.full_attention();
}

void read_olmoe(HfReader& in) {
  read_olmoe_layers(in);
  if (in.keys.find("clip_qkv")) in.to.set("clip_qkv", in.bound("clip_qkv"));
}

void write_olmoe(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  to.experts("num_experts", "intermediate_size");
  to.out["norm_topk_prob"] = to.model.moe.scoring().scores != kernels::Scores::softmax;
  if (to.model.attention.clip_qkv > 0) to.out["clip_qkv"] = to.model.attention.clip_qkv;
}

Architecture olmoe_architecture() {
  Architecture olmoe = llama_like("olmoe", "OlmoeForCausalLM");
  olmoe.rules.emplace_back(kMoeRules);
  olmoe.defaults = {kLlamaDefaults, R"({"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
      "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
      "num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": false, "output_router_logits": false,
      "router_aux_loss_coef": 0.01})"};
  olmoe.read = read_olmoe;
  olmoe.write = write_olmoe;
  olmoe.gguf = {.name = "olmoe", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}, .untied = true};
  olmoe.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.heads_fill_stream();
    in.experts("num_experts");
    in.out["norm_topk_prob"] = false;
    in.only("attention.head_count_kv", in.out["num_attention_heads"].get<double>(),
            "OLMoE has keys and values for every head");
    in.check_experts(false);
  };
  olmoe.gguf.write = [](GgufWriter& to) {
    to.llama_like();
    to.experts();
  };
  return olmoe;
}

// FlexOlmo is an OLMoE with OLMo 2's norms.
Architecture flex_olmo_architecture() {
  Architecture flex = olmoe_architecture();
  flex.model_type = "flex_olmo";
  flex.name = "FlexOlmoForCausalLM";
  flex.rules = {kModelRules, kPostNormRules, kAttentionRules, kMoeRules};
  flex.defaults = {kLlamaDefaults, R"({"vocab_size": 100352, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
      "rope_theta": 500000.0, "num_experts_per_tok": 5, "num_experts": 7, "norm_topk_prob": false,
      "output_router_logits": false, "router_aux_loss_coef": 0.01})"};
  flex.read = [](HfReader& in) {
    read_olmoe_layers(in);
    in.to.set("norm_placement", "post");
  };
  flex.gguf = {};
  return flex;
}

// ---- OLMo 2

void read_olmo2_layers(HfReader& in) {
  in.to.set("qk_layernorm", true);
  in.to.set("qk_layernorm_full_width", true);
  in.to.set("norm_placement", "post");
}

GgufArchitecture olmo2_gguf() {
  return {.name = "olmo2",
          .rules = {kGgufCommon, kGgufPostNorms, kGgufAttention},
          .matches = [](GgufReader& in) { return in.integer("attention.sliding_window", 0) <= 0; },
          .read =
              [](GgufReader& in) {
                in.llama_like();
                in.heads_fill_stream();
                in.check_experts();
              },
          .write = [](GgufWriter& to) { to.llama_like(); },
          .untied = true};
}

Architecture olmo2_architecture() {
  Architecture olmo2 = llama_like("olmo2", "Olmo2ForCausalLM");
  olmo2.rules = {kModelRules, kPostNormRules, kAttentionRules, kMlpRules};
  olmo2.defaults = {kLlamaDefaults, R"({"vocab_size": 50304, "rms_norm_eps": 1e-5})"};
  olmo2.read = [](HfReader& in) {
    in.llama_like();
    in.dense();
    read_olmo2_layers(in);
    in.attention_bias();
    in.no_mlp_bias();
    in.full_attention();
  };
  olmo2.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = to.has_attention_biases();
    to.rope();
  };
  olmo2.gguf = olmo2_gguf();
  return olmo2;
}

// ---- OLMo 3

void read_olmo3(HfReader& in) {
  in.sizes();
  in.activation();
  in.dense();
  read_olmo2_layers(in);
  const std::vector<bool> windowed = in.windowed_layers([](int64_t layer) { return (layer + 1) % 4 != 0; });
  in.window(in.keys.nullable_integer("sliding_window").value_or(0), windowed);
  read_hf_rope_of_layer_types(in.keys, in.to, in.model.positions, windowed);
  in.attention_bias();
  in.no_mlp_bias();
}

void write_olmo3(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.out["rope_parameters"] = hf_rope_of_layer_types(to.model.attention);
  to.layer_types();
  to.sliding_window();
}

constexpr int64_t kOlmo3Period = 4;

// llama.cpp stretches positions only in the layers with full attention. These are every fourth, or every N-th if the
// pattern is a number; it ignores a list.
void read_gguf_olmo3(GgufReader& in) {
  in.llama_like();
  in.heads_fill_stream();
  in.out["sliding_window"] = in.integer("attention.sliding_window");
  const int64_t layers = in.out["num_hidden_layers"].get<int64_t>();
  const std::string pattern = in.key("attention.sliding_window_pattern");
  const GgufValue* given = in.find("attention.sliding_window_pattern");
  const int64_t period = given && !given->array ? in.integer("attention.sliding_window_pattern") : kOlmo3Period;
  Json types = Json::array();
  std::vector<int64_t> windowed;
  for (int64_t layer = 0; layer < layers; ++layer) {
    windowed.push_back(period == 0 || layer % period < period - 1 ? 1 : 0);
    types.push_back(windowed.back() ? "sliding_attention" : "full_attention");
  }
  require<ConfigError>(!given || !given->array || given->integers == windowed, in.source(), ": ", pattern,
                       " must give full attention to every fourth layer, as llama.cpp does whatever this list says");
  in.out["layer_types"] = types;
  const Json plain = {{"rope_theta", in.out["rope_parameters"]["rope_theta"]}, {"rope_type", "default"}};
  in.only("rope.freq_base_swa", plain["rope_theta"].get<double>(), "llama.cpp takes rope.freq_base in these layers");
  in.out["rope_parameters"] = {{"full_attention", in.out["rope_parameters"]}, {"sliding_attention", plain}};
  in.check_experts();
}

void write_gguf_olmo3(GgufWriter& to) {
  to.llama_like();
  if (!to.hf.at("sliding_window").is_number()) return;
  to.put("attention.sliding_window", "sliding_window");
  GgufValue pattern{.type = GgufType::flag, .array = true};
  for (const Json& type : to.hf.at("layer_types")) pattern.integers.push_back(type == "sliding_attention" ? 1 : 0);
  to.out.put(to.key("attention.sliding_window_pattern"), std::move(pattern));
}

Architecture olmo3_architecture() {
  Architecture olmo3 = olmo2_architecture();
  olmo3.model_type = "olmo3";
  olmo3.name = "Olmo3ForCausalLM";
  olmo3.defaults = {kLlamaDefaults,
                    R"({"vocab_size": 50304, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096})"};
  olmo3.read = read_olmo3;
  olmo3.write = write_olmo3;
  olmo3.gguf.matches = [](GgufReader& in) { return in.integer("attention.sliding_window", 0) > 0; };
  olmo3.gguf.read = read_gguf_olmo3;
  olmo3.gguf.write = write_gguf_olmo3;
  return olmo3;
}

}  // namespace

std::vector<Architecture> olmo() {
  return {olmoe_architecture(), flex_olmo_architecture(), olmo2_architecture(), olmo3_architecture()};
}

}  // namespace witan::models
