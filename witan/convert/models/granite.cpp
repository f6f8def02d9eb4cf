// Granite 3 and PowerMoE: a Llama and a Mixtral whose embedding, residual stream, attention and logits have
// multipliers.
#include <cmath>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kGraniteMoeRules[] = {
    {"moe.router.weight", "layers.{l}.block_sparse_moe.router.layer.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.block_sparse_moe.input_linear.weight",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.block_sparse_moe.output_linear.weight",
     .storage = ExpertStorage::fused},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.shared_mlp.input_linear.weight"},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.shared_mlp.output_linear.weight"},
};

constexpr std::string_view kGraniteDefaults = R"({"vocab_size": 32000, "embedding_multiplier": 1.0,
      "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0})";

double default_attention_multiplier(const ModelConfig& model) {
  return 1 / std::sqrt(static_cast<double>(model.attention.qk_head_dim(model.hidden_size)));
}

void read_multipliers(HfReader& in) {
  const auto multiplier = [&](const char* key) {
    const double value = in.keys.number(key);
    if (!(value > 0)) in.keys.refuse(key, "Witan's multipliers are above 0");
    return value;
  };
  if (const double of = multiplier("embedding_multiplier"); of != 1) in.to.set("embedding_multiplier", of);
  if (const double of = multiplier("residual_multiplier"); of != 1) in.to.set("residual_multiplier", of);
  if (const double divisor = multiplier("logits_scaling"); divisor != 1) in.to.set("logit_scale", 1 / divisor);
  const double of_attention = multiplier("attention_multiplier");
  if (of_attention != default_attention_multiplier(in.to.model())) in.to.set("softmax_scale", of_attention);
}

void write_multipliers(HfWriter& to) {
  constexpr double kDigits = 1e12;  // rounds 1 / (1 / x) to x
  const double scale = to.model.attention.softmax_scale;
  to.out["embedding_multiplier"] = to.model.embedding_multiplier;
  to.out["residual_multiplier"] = to.model.residual_multiplier;
  to.out["logits_scaling"] = std::round(kDigits / to.model.logit_scale) / kDigits;
  to.out["attention_multiplier"] = scale > 0 ? scale : default_attention_multiplier(to.model);
}

void read_granite(HfReader& in) {
  in.llama_like();
  read_multipliers(in);
  in.attention_bias();
  in.full_attention();
}

void write_granite(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  write_multipliers(to);
}

// ---- GGUF files, whose logit_scale divides

void read_gguf_granite(GgufReader& in) {
  in.llama_like();
  require<ConfigError>(in.flag("rope.scaling.finetuned").value_or(true), in.source(), ": ",
                       in.key("rope.scaling.finetuned"), " = false: Granite's layers rotate in Witan");
  in.out["embedding_multiplier"] = in.number("embedding_scale", 1.0);
  in.out["residual_multiplier"] = in.number("residual_scale", 1.0);
  in.out["logits_scaling"] = in.number("logit_scale", 1.0);
  const double scale = in.number("attention.scale", 0.0), usual = 1 / std::sqrt(in.out["head_dim"].get<double>());
  const bool given = scale > 0 && static_cast<float>(scale) != static_cast<float>(usual);
  in.out["attention_multiplier"] = given ? scale : usual;
}

void write_gguf_granite(GgufWriter& to) {
  to.llama_like();
  to.put_real("embedding_scale", to.hf.at("embedding_multiplier").get<double>());
  to.put_real("residual_scale", to.hf.at("residual_multiplier").get<double>());
  to.put_real("logit_scale", to.hf.at("logits_scaling").get<double>());
  to.put_real("attention.scale", to.hf.at("attention_multiplier").get<double>());
}

GgufArchitecture granite_gguf() {
  return {.name = "granite",
          .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention},
          .read =
              [](GgufReader& in) {
                read_gguf_granite(in);
                in.check_experts();
              },
          .write = write_gguf_granite};
}

Architecture granite_architecture() {
  Architecture granite = llama_like("granite", "GraniteForCausalLM");
  granite.defaults = {kLlamaDefaults, kGraniteDefaults};
  granite.read = [](HfReader& in) {
    read_granite(in);
    in.dense();
    if (in.keys.flag("mlp_bias", false)) in.to.set("add_mlp_bias", true);
  };
  granite.write = [](HfWriter& to) {
    write_granite(to);
    to.out["mlp_bias"] = to.model.mlp_bias() != Bias::none;
  };
  granite.gguf = granite_gguf();
  return granite;
}

// ---- Models with experts

void read_granite_moe(HfReader& in) {
  read_granite(in);
  const int64_t experts = in.keys.integer("num_local_experts");
  if (experts == 0) in.keys.refuse("num_local_experts", "each layer has experts");
  in.experts(experts, in.keys.integer("num_experts_per_tok"));
  in.no_mlp_bias();
  in.keys.only("position_embedding_type", "rope", "transformers' layers rotate, whatever this key says");
}

void write_granite_moe(HfWriter& to) {
  write_granite(to);
  to.experts("num_local_experts", "intermediate_size");
}

Architecture granite_moe_architecture() {
  Architecture moe = llama_like("granitemoe", "GraniteMoeForCausalLM");
  moe.rules = {kModelRules, kPreNormRules, kAttentionRules, kGraniteMoeRules};
  moe.modules = {{".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"},
                 {".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"}};
  moe.defaults = {kLlamaDefaults, kGraniteDefaults, R"({"num_local_experts": 8, "num_experts_per_tok": 2,
      "output_router_logits": false, "router_aux_loss_coef": 0.001})"};
  moe.read = [](HfReader& in) {
    read_granite_moe(in);
    in.keys.only("shared_intermediate_size", 0, "granitemoeshared has shared experts, this type has none");
  };
  moe.write = write_granite_moe;
  moe.gguf = granite_gguf();
  moe.gguf.name = "granitemoe";
  moe.gguf.matches = [](GgufReader& in) { return in.integer("expert_shared_feed_forward_length", 0) == 0; };
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_granite(in);
    in.experts("num_local_experts");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    write_gguf_granite(to);
    to.experts();
  };
  return moe;
}

Architecture granite_moe_shared_architecture() {
  Architecture moe = granite_moe_architecture();
  moe.model_type = "granitemoeshared";
  moe.name = "GraniteMoeSharedForCausalLM";
  moe.defaults.emplace_back(R"({"shared_intermediate_size": 0})");
  moe.read = [](HfReader& in) {
    read_granite_moe(in);
    if (const int64_t size = in.keys.integer("shared_intermediate_size"); size > 0)
      in.to.set("moe_shared_expert_intermediate_size", size);
  };
  moe.write = [](HfWriter& to) {
    write_granite_moe(to);
    to.out["shared_intermediate_size"] = to.model.moe.moe_shared_expert_intermediate_size;
  };
  moe.gguf.matches = [](GgufReader& in) { return in.integer("expert_shared_feed_forward_length", 0) > 0; };
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_granite(in);
    in.experts("num_local_experts");
    in.out["shared_intermediate_size"] = in.integer("expert_shared_feed_forward_length");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    write_gguf_granite(to);
    to.experts();
    to.put("expert_shared_feed_forward_length", "shared_intermediate_size");
  };
  return moe;
}

}  // namespace

std::vector<Architecture> granite() {
  return {granite_architecture(), granite_moe_architecture(), granite_moe_shared_architecture()};
}

}  // namespace witan::models
