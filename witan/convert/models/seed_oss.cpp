// Seed-OSS: a Llama whose queries, keys and values have biases.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr GgufRule kGgufSeedNorms[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "post_attention_norm.weight"},
};

void read_seed_oss(HfReader& in) {
  in.llama_like();
  in.dense();
  const bool qkv = in.keys.flag("attention_bias"), output = in.keys.flag("attention_out_bias");
  if (output && !qkv)
    in.keys.refuse("attention_out_bias",
                   "Witan has no bias of the output projection without those of queries, keys "
                   "and values");
  if (qkv) in.to.set(output ? "add_attention_bias" : "add_qkv_bias", true);
  if (in.keys.flag("mlp_bias")) in.to.set("add_mlp_bias", true);
  in.keys.find("residual_dropout");  // training only, and not of the embedding, as Witan's hidden_dropout is too
  in.full_attention();
}

void write_seed_oss(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases() || to.model.attention.add_qkv_bias;
  to.out["attention_out_bias"] = to.has_attention_biases();
  to.out["mlp_bias"] = to.model.mlp_bias() != Bias::none;
  to.out["residual_dropout"] = 0.0;
  to.rope();
}

}  // namespace

std::vector<Architecture> seed_oss() {
  Architecture seed = llama_like("seed_oss", "SeedOssForCausalLM");
  seed.defaults = {kLlamaDefaults, R"({"vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64,
      "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288,
      "attention_bias": true, "attention_out_bias": false, "attention_dropout": 0.1, "residual_dropout": 0.1})"};
  seed.read = read_seed_oss;
  seed.write = write_seed_oss;
  seed.gguf = {.name = "seed_oss", .rules = {kGgufCommon, kGgufSeedNorms, kGgufAttention}};
  seed.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.out["attention_bias"] = in.facts().qkv_biases;
    in.check_experts();
  };
  seed.gguf.write = [](GgufWriter& to) { to.llama_like(); };
  return {seed};
}

}  // namespace witan::models
