// Mistral, with windows, and Mixtral, with experts. GGUF files of both are llama.cpp's "llama".
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kMixtralRules[] = {
    {.witan = "moe.router.weight",
     .other = "layers.{l}.block_sparse_moe.gate.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.router.weight", .other = "layers.{l}.mlp.gate.weight", .storage = ExpertStorage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.mlp.experts.down_proj", .storage = ExpertStorage::fused},
};

GgufArchitecture llama_gguf() {
  return {.name = "llama", .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention}};
}

Architecture mistral_architecture() {
  Architecture mistral = llama_like("mistral", "MistralForCausalLM");
  mistral.defaults = {kLlamaDefaults, R"({"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "sliding_window": 4096})"};
  mistral.read = [](HfReader& in) {
    in.llama_like();
    in.dense();
    // Given layer_types, transformers makes the model that it calls Ministral.
    const auto tokens = in.keys.nullable_integer("sliding_window");
    in.window(tokens.value_or(0), in.windowed_layers([&](int64_t) { return tokens.has_value(); }));
    in.no_attention_bias();
    in.no_mlp_bias();
  };
  mistral.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = false;
    to.rope();
    to.sliding_window();
  };
  mistral.gguf = llama_gguf();
  mistral.gguf.matches = [](GgufReader&) { return false; };  // without a window, which GGUF lacks, it is a Llama
  mistral.gguf.write = [](GgufWriter& to) { to.llama_like(); };
  return mistral;
}

Architecture mixtral_architecture() {
  Architecture mixtral = llama_like("mixtral", "MixtralForCausalLM");
  mixtral.rules.emplace_back(kBlockSparseExpertRules);
  mixtral.rules.emplace_back(kMixtralRules);
  mixtral.defaults = {kLlamaDefaults, R"({"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "num_experts_per_tok": 2,
      "num_local_experts": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001,
      "router_jitter_noise": 0.0})"};
  mixtral.read = [](HfReader& in) {
    in.llama_like();
    in.experts(in.keys.integer("num_local_experts"), in.keys.integer("num_experts_per_tok"));
    in.keys.only("router_jitter_noise", 0.0, "Mixtral multiplies what experts read too, Witan what the router reads");
    in.window_everywhere();
    in.no_attention_bias();
    in.no_mlp_bias();
    in.full_attention();
  };
  mixtral.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = false;
    to.rope();
    to.sliding_window();
    to.experts("num_local_experts", "intermediate_size");
  };
  mixtral.gguf = llama_gguf();
  mixtral.gguf.matches = [](GgufReader& in) { return in.integer("expert_count", 0) > 0; };
  mixtral.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.experts("num_local_experts");
    in.check_experts();
  };
  mixtral.gguf.write = [](GgufWriter& to) {
    to.llama_like();
    to.experts();
  };
  return mixtral;
}

}  // namespace

std::vector<Architecture> mistral() {
  return {mistral_architecture(), mixtral_architecture()};
}

}  // namespace witan::models
