#include "witan/convert/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

// The first architecture that has the file's name and matches its keys.
const Architecture& architecture_of(GgufReader& in) {
  std::set<std::string_view> known;
  for (const Architecture& one : architectures()) {
    for (const std::string_view name : {one.gguf.name, one.gguf.name_with_experts})
      if (!name.empty()) known.insert(name);
    if ((one.gguf.name == in.architecture() || one.gguf.name_with_experts == in.architecture()) &&
        (one.gguf.matches == nullptr || one.gguf.matches(in)))
      return one;
  }
  std::string list;
  for (const std::string_view name : known) list += cat(list.empty() ? "" : ", ", name);
  throw ConfigError(cat(in.source(), ": ", kGgufArchitecture, " = ", clipped(in.architecture()),
                        ": Witan cannot represent models of this architecture; it knows ", list));
}

}  // namespace

HfModel read_gguf_config(const GgufMetadata& metadata, const GgufFacts& facts) {
  GgufReader in(metadata, facts);
  const Architecture& architecture = architecture_of(in);
  in.out["model_type"] = architecture.model_type;
  const int64_t layers = in.integer("block_count");
  require<ConfigError>(layers <= facts.tensors.value_or(layers), in.source(), ": ", in.key("block_count"), " = ",
                       layers, ": the file has ", facts.tensors.value_or(0),
                       " tensors, fewer than layers; it is cut, or its keys are another model's");
  in.out["vocab_size"] = facts.vocab_size;
  in.out["tie_word_embeddings"] = facts.tied;
  architecture.gguf.read(in);
  in.finish();
  return read_hf_config(in.out.dump(), metadata.source());
}

bool gguf_copies_head(const Architecture& architecture, const ModelConfig& model) {
  return !model.untie_embeddings_and_output_weights && architecture.gguf.untied;
}

GgufMetadata write_gguf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions) {
  std::string_view name = gguf_architecture(architecture);  // refuses what has no such file, before anything else
  if (model.moe.num_experts > 0 && !architecture.gguf.name_with_experts.empty())
    name = architecture.gguf.name_with_experts;
  ModelConfig written = model;
  if (architecture.gguf.approximate) architecture.gguf.approximate(written);
  if (gguf_copies_head(architecture, model)) written.untie_embeddings_and_output_weights = true;
  const Json hf = parse_json(write_hf_config(architecture, written, positions, "float32"), "config.json");
  GgufWriter to(name, written, hf);
  architecture.gguf.write(to);
  const bool tied = !written.untie_embeddings_and_output_weights;
  const AttentionConfig& attention = model.attention;
  const HfModel again = read_gguf_config(to.out, {.vocab_size = model.vocab_size,
                                                  .tied = tied,
                                                  .rope_factors = rope_factors(model),
                                                  .qkv_biases = attention.add_qkv_bias || attention.add_attention_bias,
                                                  .qk_norms = attention.qk_layernorm,
                                                  .mlp_biases = model.mlp_bias() != Bias::none,
                                                  .values_from_keys = attention.attention_k_eq_v});
  const auto different = differences(again.model, written);
  require<ConfigError>(different.empty(), "llama.cpp's model of type ", name,
                       " cannot be what this one is: ", different.empty() ? "" : different[0]);
  return std::move(to.out);
}

std::string_view gguf_architecture(const Architecture& architecture) {
  require<ConfigError>(!architecture.gguf.name.empty(), "llama.cpp has no architecture for models of type ",
                       architecture.model_type, ", so that no GGUF file can hold one: export --format hf");
  return architecture.gguf.name;
}

std::vector<float> rope_factors(const ModelConfig& model) {
  const AttentionConfig& attention = model.attention;
  if (attention.rotary_proportional) {
    const int64_t pairs = attention.qk_head_dim(model.hidden_size) / 2;
    std::vector<float> factors(static_cast<size_t>(pairs), kStillPair);
    const auto turning = std::floor(attention.rotary_percent * static_cast<double>(pairs));
    std::fill_n(factors.begin(), static_cast<int64_t>(turning), 1.0F);
    return factors;
  }
  if (attention.rope_scaling_type != "llama3") return {};
  return Llama3Factors{.base = attention.rotary_base,
                       .dims = attention.qk_head_dim(model.hidden_size),
                       .factor = attention.rotary_scaling_factor,
                       .low = attention.rope_low_freq_factor,
                       .high = attention.rope_high_freq_factor,
                       .original = static_cast<double>(attention.original_max_position_embeddings)}
      .values();
}

}  // namespace witan
