#include "witan/generate/cache_options.h"

#include <algorithm>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr const char* kRepeatable =
    " changes the bits of tokens, which batch_invariant_mode and --deterministic keep equal to the training forward's; "
    "leave one of them out";

// The layer and the reason why its cache cannot have this format; empty if all can.
std::string refusal(const ModelConfig& model, const CacheFormat& format) {
  const std::vector<LayerSpec> layers = model.layers();
  const MixerModel around = model.around_mixers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string why = mixer_kind(layers[i].mixer).cache_refusal(format, around);
    if (!why.empty()) return cat("layer ", i, ": ", why);
  }
  return "";
}

// Whether each latent layer, of which there is at least one, caches fewer channels as latents.
bool latents_are_smaller(const ModelConfig& model, int64_t tensor_ranks) {
  bool any = false;
  for (const LayerSpec& layer : model.layers())
    if (const auto* latent = std::get_if<LatentSpec>(&layer.mixer)) {
      if (latent->latent_channels() >= latent->head_channels(tensor_ranks)) return false;
      any = true;
    }
  return any;
}

bool has_latents(const ModelConfig& model) {
  return std::ranges::any_of(model.layers(),
                             [](const LayerSpec& layer) { return std::holds_alternative<LatentSpec>(layer.mixer); });
}

bool caches_keys(const ModelConfig& model) {
  return std::ranges::any_of(model.layers(),
                             [](const LayerSpec& layer) { return mixer_kind(layer.mixer).caches_keys(); });
}

}  // namespace

Fields CacheOptions::fields() {
  return {
      Field{"kv_cache_dtype", &kv_cache_dtype,
            "Dtype of cached keys and values: auto is the model's; fp8_e4m3 has 8 bits and a scale for each head of a "
            "position, which halves the memory of 16-bit models and rounds what later tokens read"}
          .one_of({"auto", "fp8_e4m3"}),
      Field{
          "cache_mla_latents", &cache_mla_latents,
          "Cache the latents of multi-head latent attention, not the heads' keys and values (auto: on GPUs if they are "
          "smaller, except where tokens keep the bits of the training forward)"}
          .one_of({"auto", "true", "false"}),
  };
}

CacheFormat resolve_cache(const CacheOptions& options, const ModelConfig& model, const CacheUse& use) {
  CacheFormat format;
  if (options.kv_cache_dtype != "auto") {
    const std::string given = "kv_cache_dtype = " + options.kv_cache_dtype;
    require<ConfigError>(!use.repeatable, given, kRepeatable);
    require<ConfigError>(caches_keys(model), given,
                         ": no layer of the model has a cache of all keys and values; set it to auto");
    format.fp8 = true;
    const std::string why = refusal(model, format);
    require<ConfigError>(why.empty(), given, ": ", why, "; set it to auto");
  }
  if (options.cache_mla_latents == "false") return format;
  const CacheFormat with_latents{.latents = true, .fp8 = format.fp8};
  std::string why = refusal(model, with_latents);
  if (why.empty() && model.fp8())
    why = cat("fp8_format = ", model.fp8_format, " multiplies kv_b_proj in 8 bits, as decoding from latents does not");
  if (options.cache_mla_latents == "true") {
    constexpr const char* given = "cache_mla_latents = true";
    require<ConfigError>(has_latents(model), given, ": the model has no multi-head latent attention; set it to auto");
    require<ConfigError>(!use.repeatable, given, kRepeatable);
    require<ConfigError>(why.empty(), given, ": ", why, "; set it to auto");
    return with_latents;
  }
  return use.gpu && !use.repeatable && why.empty() && latents_are_smaller(model, use.tensor_ranks) ? with_latents
                                                                                                   : format;
}

}  // namespace witan
