// The text decoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. Their rotary positions have sections for time, height and
// width, which are equal in text.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

void read_text_decoder(HfReader& in) {
  in.sizes();
  in.activation();
  in.rope(HfRope::sections);
}

void read_gguf_text_decoder(GgufReader& in) {
  in.llama_like();
  for (const char* of_images : {kGgufSections, "n_deepstack_layers"}) in.find(of_images);
}

// ---- Qwen2-VL, Qwen2.5-VL

// Published folders describe the text decoder beside the towers and not in an object of its own.
void pass_over_towers(HfReader& in) {
  for (const char* key : {"vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
                          "vision_end_token_id", "vision_token_id"})
    in.keys.find(key);
}

void read_qwen2_vl(HfReader& in) {
  read_text_decoder(in);
  in.dense();
  in.to.set("add_qkv_bias", true);
  const auto tokens = in.keys.nullable_integer("sliding_window");
  const bool slides = in.keys.flag("use_sliding_window") && tokens;
  const int64_t from = in.keys.integer("max_window_layers");
  const std::vector<bool> windowed = in.windowed_layers([&](int64_t layer) { return slides && layer >= from; });
  if (!slides && std::ranges::find(windowed, true) != windowed.end())
    in.keys.refuse("layer_types", "layers of sliding_attention need use_sliding_window = true and a sliding_window");
  in.window(tokens.value_or(0), windowed);
  in.no_attention_bias();
  in.no_mlp_bias();
  pass_over_towers(in);
}

void write_qwen2_vl(HfWriter& to) {
  to.sizes();
  to.rope();
  to.layer_types();
  to.sliding_window();
  to.out["use_sliding_window"] = to.out["sliding_window"].is_number();
}

GgufArchitecture qwen2_vl_gguf() {
  return {.name = "qwen2vl",
          .rules = {kGgufCommon, kGgufNorms, kGgufAttention},
          .read =
              [](GgufReader& in) {
                read_gguf_text_decoder(in);
                in.heads_fill_stream();
                in.check_experts();
              },
          .write =
              [](GgufWriter& to) {
                to.llama_like();
                to.put_list(kGgufSections, {16, 24, 24, 0});
              }};
}

Architecture qwen2_vl_architecture(std::string_view model_type, std::string_view name, std::string_view whole) {
  Architecture text = llama_like(model_type, name);
  text.defaults = {kLlamaDefaults, R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
      "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 80})"};
  text.read = read_qwen2_vl;
  text.write = write_qwen2_vl;
  text.tied_in_text = true;
  text.side = "visual.";
  text.other_types = {whole};
  text.gguf = qwen2_vl_gguf();
  return text;
}

// ---- Qwen3-VL

void read_qwen3_vl_layers(HfReader& in) {
  read_text_decoder(in);
  in.to.set("qk_layernorm", true);
  in.attention_bias();
  in.no_mlp_bias();
  in.full_attention();
}

void write_qwen3_vl_layers(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
}

// Without layers that read images' features again, which a file of a whole model counts.
void write_gguf_qwen3_vl(GgufWriter& to) {
  to.llama_like();
  to.put_list(kGgufSections, {24, 20, 20, 0});
  to.put("n_deepstack_layers", int64_t{0});
}

Architecture qwen3_vl_architecture() {
  Architecture text = llama_like("qwen3_vl_text", "Qwen3VLForConditionalGeneration");
  text.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
      "head_dim": 128, "max_position_embeddings": 128000, "rope_theta": 500000.0})"};
  text.read = [](HfReader& in) {
    read_qwen3_vl_layers(in);
    in.dense();
  };
  text.write = write_qwen3_vl_layers;
  text.gguf = {.name = "qwen3vl", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}, .write = write_gguf_qwen3_vl};
  text.gguf.read = [](GgufReader& in) {
    read_gguf_text_decoder(in);
    in.check_experts();
  };
  return text;
}

// Published files hold the experts' matrices as [in, out].
constexpr TensorRule kQwen3VlMoeRules[] = {
    {"moe.router.weight", "layers.{l}.mlp.gate.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.mlp.experts.down_proj", .storage = ExpertStorage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .transposed = true,
     .storage = ExpertStorage::fused_in_out},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.mlp.experts.down_proj",
     .transposed = true,
     .storage = ExpertStorage::fused_in_out},
};

Architecture qwen3_vl_moe_architecture() {
  Architecture moe = llama_like("qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration");
  moe.rules.emplace_back(kQwen3VlMoeRules);
  moe.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
      "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000,
      "rope_theta": 500000.0, "tie_word_embeddings": true, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
      "num_experts_per_tok": 4, "num_experts": 60, "output_router_logits": false, "router_aux_loss_coef": 0.001})"};
  moe.read = [](HfReader& in) {
    read_qwen3_vl_layers(in);
    in.experts();
    in.keys.find("num_experts");  // also given beside num_local_experts
    in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
    in.keys.only("norm_topk_prob", true, "transformers' Qwen3-VL divides by the sum, whatever this key says");
    in.moe_layers(in.layers_by_sparse_step(), "mlp_only_layers");
  };
  moe.write = [](HfWriter& to) {
    write_qwen3_vl_layers(to);
    to.experts("num_experts", "moe_intermediate_size");
    to.mlp_only_layers();
  };
  moe.gguf = {.name = "qwen3vlmoe", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}};
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_text_decoder(in);
    in.experts("num_experts");
    in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
    in.only("expert_gating_func", static_cast<double>(kSoftmaxGate), "Qwen3's scores are a softmax");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    to.need_experts();
    write_gguf_qwen3_vl(to);
    to.experts();
    to.put("expert_feed_forward_length", "moe_intermediate_size");
  };
  return moe;
}

}  // namespace

std::vector<Architecture> qwen_vl() {
  Architecture two = qwen2_vl_architecture("qwen2_vl_text", "Qwen2VLForConditionalGeneration", "qwen2_vl"),
               five = qwen2_vl_architecture("qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl");
  // llama.cpp's files of both are alike.
  two.gguf.matches = [](GgufReader&) { return false; };
  five.gguf.matches = [](GgufReader&) { return true; };
  return {two, five, qwen3_vl_architecture(), qwen3_vl_moe_architecture()};
}

}  // namespace witan::models
