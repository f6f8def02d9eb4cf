// Llama 2 and 3.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {

std::vector<Architecture> llama() {
  Architecture llama = llama_like("llama", "LlamaForCausalLM");
  llama.defaults = {kLlamaDefaults, R"({"vocab_size": 32000})"};
  llama.read = [](HfReader& in) {
    in.llama_like();
    in.dense();
    in.attention_bias();
    if (in.keys.flag("mlp_bias", false)) in.to.set("add_mlp_bias", true);
    in.full_attention();
  };
  llama.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = to.has_attention_biases();
    to.out["mlp_bias"] = to.model.mlp_bias() != Bias::none;
    to.rope();
  };
  llama.gguf = {.name = "llama", .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention}};
  llama.gguf.matches = [](GgufReader& in) { return in.integer("expert_count", 0) <= 0; };
  llama.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.check_experts();
  };
  llama.gguf.write = [](GgufWriter& to) { to.llama_like(); };
  return {llama};
}

}  // namespace witan::models
