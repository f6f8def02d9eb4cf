// SmolLM3: a Llama in which every fourth layer, or others that no_rope_layers says, has no rotary positions.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr int64_t kSmollmPeriod = 4;  // llama.cpp's

// no_rope_layers has 1 for a layer that rotates.
std::vector<bool> rotating_layers(HfReader& in) {
  const int64_t interval = in.keys.integer("no_rope_layer_interval");
  std::vector<bool> rotating;
  if (const Json* list = in.keys.find("no_rope_layers")) {
    if (!list->is_array() || static_cast<int64_t>(list->size()) < in.layers)
      in.keys.refuse("no_rope_layers", "must have an entry for each of num_hidden_layers");
    for (const Json& one : *list) {
      if (one != 0 && one != 1) in.keys.refuse("no_rope_layers", "an entry must be 0 or 1");
      rotating.push_back(one == 1);
    }
    rotating.resize(static_cast<size_t>(in.layers));
    return rotating;
  }
  if (interval == 0) in.keys.refuse("no_rope_layer_interval", "must be at least 1");
  for (int64_t layer = 0; layer < in.layers; ++layer) rotating.push_back((layer + 1) % interval != 0);
  return rotating;
}

void read_smollm3(HfReader& in) {
  in.llama_like();
  in.dense();
  const std::vector<bool> rotating = rotating_layers(in);
  std::vector<bool> still = rotating;
  still.flip();
  in.no_rope_layers(still);
  const auto tokens = in.keys.nullable_integer("sliding_window");
  const bool slides = in.keys.flag("use_sliding_window") && tokens;
  in.window(tokens.value_or(0),
            in.windowed_layers([&](int64_t layer) { return slides && !rotating[static_cast<size_t>(layer)]; }));
  in.attention_bias();
  if (in.keys.flag("mlp_bias", false)) in.to.set("add_mlp_bias", true);
}

void write_smollm3(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.out["mlp_bias"] = to.model.mlp_bias() != Bias::none;
  to.rope();
  to.out["no_rope_layers"] = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers)
    to.out["no_rope_layers"].push_back(rotation_of(layer.mixer).dims > 0 ? 1 : 0);
  to.layer_types();
  to.sliding_window();
  to.out["use_sliding_window"] = to.out["sliding_window"].is_number();
}

}  // namespace

std::vector<Architecture> smollm3() {
  Architecture smollm = llama_like("smollm3", "SmolLM3ForCausalLM");
  smollm.defaults = {kLlamaDefaults, R"({"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
      "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2000000.0,
      "use_sliding_window": false, "no_rope_layer_interval": 4, "tie_word_embeddings": true})"};
  smollm.read = read_smollm3;
  smollm.write = write_smollm3;
  smollm.gguf = {.name = "smollm3", .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention}};
  smollm.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.out["no_rope_layer_interval"] = kSmollmPeriod;
    in.check_experts();
  };
  smollm.gguf.write = [](GgufWriter& to) { to.llama_like(); };
  return {smollm};
}

}  // namespace witan::models
