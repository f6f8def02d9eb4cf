#include <charconv>

#include "witan/convert/elements/block_codec.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/convert/gguf/gguf_export.h"

namespace witan {
namespace {

bool is_k_quant(Element type) {
  return type == Element::q4_k || type == Element::q5_k || type == Element::q6_k;
}

// Returns 12 for "blk.12.ffn_down.weight", and 0 outside of layers.
int64_t block_number(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = 0;
  if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

bool takes_more_bits(std::string_view name, int64_t layers) {
  if (!name.ends_with(".attn_v.weight") && !name.ends_with(".ffn_down.weight") &&
      !name.ends_with(".ffn_down_exps.weight"))
    return false;
  const int64_t layer = block_number(name), eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

Element before_rows(const GgufTypes& types, std::string_view name) {
  if (types.type == Element::mxfp4) return name.ends_with("_exps.weight") ? Element::mxfp4 : Element::q8_0;
  if (!is_k_quant(types.type)) return types.type;
  if (name == (types.tied ? kGgufEmbedding : kGgufHead)) return Element::q6_k;
  return types.mixed && takes_more_bits(name, types.layers) ? Element::q6_k : types.type;
}

}  // namespace

Element gguf_type_of(const GgufTypes& types, std::string_view name, const Shape& shape) {
  if (is_always_f32(name, shape.dims())) return Element::f32;
  return type_for_rows(before_rows(types, name), shape.last());
}

Element type_for_rows(Element type, int64_t row) {
  for (;;) {
    const BlockCodec* codec = block_codec(type);
    if (codec == nullptr || row % codec->block == 0) return type;
    if (type == Element::q4_k)
      type = Element::q5_0;
    else if (type == Element::q5_k || type == Element::q6_k)
      type = Element::q8_0;
    else
      return Element::f16;
  }
}

int64_t gguf_file_type(std::string_view type, bool mixed) {
  if (type == "F16") return 1;
  if (type == "Q8_0") return 7;
  if (type == "Q5_0") return 8;
  if (type == "Q4_K") return mixed ? 15 : 14;
  if (type == "Q5_K") return 16;
  if (type == "Q6_K") return 18;
  if (type == "BF16") return 32;
  return type == "MXFP4" ? 38 : 0;
}

}  // namespace witan
