#include "witan/convert/hf/hf_quantiser.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMatrixSuffix = ".weight", kMxfp4Suffix = "_blocks";
constexpr int64_t kFp8Block = 128, kLargeGroup = 128, kSmallGroup = 32;
constexpr int64_t kQuantisedStretch = int64_t{2} << 20;  // elements

std::string without(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.size() - suffix.size()));
}

// Whether Witan's name is that of a projection of attention, an MLP or experts.
bool is_projection(std::string_view name) {
  if (name.ends_with(kMatrixSuffix)) name.remove_suffix(kMatrixSuffix.size());
  return name.ends_with("_proj") && !name.ends_with(".eh_proj");
}

bool is_linear(const Link& link) {
  return link.shape.dims() == 2 && link.name.ends_with(kMatrixSuffix) && is_projection(link.pieces.front().from.name);
}

// Some readers divide a matrix into equal blocks even if its size is not a multiple of the block's.
bool has_whole_blocks(int64_t size) {
  return size <= kFp8Block || size % kFp8Block == 0;
}

// The module of a tensor. Experts of a layer are one module, "model.layers.0.mlp.experts".
std::string skipped_module(const Link& link) {
  constexpr std::string_view kExperts = ".experts.";
  const std::string name = without(link.name, kMatrixSuffix);
  const size_t at = name.find(kExperts);
  return at == std::string::npos ? name : name.substr(0, at + kExperts.size() - 1);
}

uint64_t elements_times(const Shape& shape, int64_t bytes) {
  return static_cast<uint64_t>(shape.elements() * bytes);
}

}  // namespace

void check_quantisation(HfQuantisation kind, const Architecture& architecture) {
  const std::string_view type = architecture.model_type;
  if (kind == HfQuantisation::mxfp4) {
    require<ConfigError>(has_mxfp4(architecture),
                         "--dtype mxfp4: of Hugging Face folders only gpt_oss's have weights in ",
                         "MXFP4, and this model is of type ", type, "; --dtype int4 has about as many bits");
  } else {
    require<ConfigError>(!has_transposed(architecture), "a model of type ", type,
                         " has matrices that are [in, out], for which this quantisation is not defined",
                         has_mxfp4(architecture) ? "; --dtype mxfp4 is gpt-oss's own" : "");
  }
}

HfQuantiser::HfQuantiser(HfQuantisation kind, Element scales, const std::vector<Link>& links)
    : kind_(kind), scales_(scales) {
  group_ = std::ranges::all_of(
               links, [](const Link& link) { return !is_linear(link) || link.shape.last() % kLargeGroup == 0; })
               ? kLargeGroup
               : kSmallGroup;
  if (kind == HfQuantisation::mxfp4) return;
  for (const Link& link : links)
    if (link.shape.dims() >= 2 && link.name.ends_with(kMatrixSuffix) && !takes(link) &&
        !link.name.ends_with("embed_tokens.weight"))
      if (const std::string module = skipped_module(link); std::ranges::find(left_out_, module) == left_out_.end())
        left_out_.push_back(module);
}

bool HfQuantiser::takes(const Link& link) const {
  if (kind_ == HfQuantisation::mxfp4) return link.name.ends_with(kMxfp4Suffix);
  return is_linear(link) && fits(link);
}

bool HfQuantiser::fits(const Link& link) const {
  const int64_t rows = link.shape[0], columns = link.shape[1];
  if (kind_ == HfQuantisation::int4) return columns % group_ == 0;
  if (kind_ == HfQuantisation::int8) return true;
  return has_whole_blocks(rows) && has_whole_blocks(columns) && rows * columns % 4 == 0;  // scales are aligned
}

int64_t HfQuantiser::groups_of_row(const Link& link) const {
  return kind_ == HfQuantisation::int8 ? 1 : link.shape.last() / group_;
}

HfQuantiser::Parts HfQuantiser::parts(const Link& link) const {
  const Shape& shape = link.shape;
  if (kind_ == HfQuantisation::mxfp4) {
    require<ConfigError>(shape.last() % kMxGroup == 0, "\"", link.name, "\" ", shape,
                         " has rows that are no groups of ", kMxGroup, ", as MXFP4 has them");
    Shape groups = shape.with(shape.dims() - 1, shape.last() / kMxGroup), blocks = groups;
    blocks.append(kMxGroup / 2);
    return {{},
            {link.name, "U8", blocks, elements_times(blocks, 1)},
            {without(link.name, kMxfp4Suffix) + "_scales", "U8", groups, elements_times(groups, 1)}};
  }
  const std::string base = without(link.name, kMatrixSuffix);
  const int64_t rows = shape[0], columns = shape[1];
  if (kind_ == HfQuantisation::fp8) {
    const Shape scales{(rows + kFp8Block - 1) / kFp8Block, (columns + kFp8Block - 1) / kFp8Block};
    return {{},
            {link.name, "F8_E4M3", shape, elements_times(shape, 1)},
            {link.name + "_scale_inv", "F32", scales, elements_times(scales, 4)}};
  }
  const Shape words{rows, packed_words(columns, kind_ == HfQuantisation::int4 ? 4 : 8)},
      scales{rows, groups_of_row(link)};
  return {{{base + ".weight_shape", "I64", Shape{2}, 2 * sizeof(int64_t)}},
          {base + ".weight_packed", "I32", words, elements_times(words, 4)},
          {base + ".weight_scale", std::string(name_of(scales_)), scales, elements_times(scales, size_of(scales_))}};
}

std::vector<std::byte> HfQuantiser::bytes_before(const Link& link) const {
  const int64_t sizes[] = {link.shape[0], link.shape[1]};
  std::vector<std::byte> bytes(sizeof sizes);
  std::memcpy(bytes.data(), sizes, sizeof sizes);
  return bytes;
}

int64_t HfQuantiser::rows_of_stretch(const Link& link) const {
  return std::max(kQuantisedStretch / link.shape.last() / kFp8Block, int64_t{1}) * kFp8Block;
}

RoundingError HfQuantiser::quantise(const Link& link, std::span<const float> values, ThreadPool& pool,
                                    std::vector<std::byte>& codes, std::vector<std::byte>& scales,
                                    const ErrorFeedback* feedback) const {
  const int64_t columns = link.shape.last();
  switch (kind_) {
    case HfQuantisation::fp8:
      return quantise_fp8_blocks(values, columns, kFp8Block, pool, codes, scales);
    case HfQuantisation::int8:
      return quantise_packed(values, columns, 1, 8, scales_, pool, codes, scales);
    case HfQuantisation::int4:
      return quantise_packed(values, columns, groups_of_row(link), 4, scales_, pool, codes, scales, feedback);
    case HfQuantisation::mxfp4:
      break;
  }
  return quantise_mxfp4_pairs(values, pool, codes, scales);
}

std::string_view HfQuantiser::name() const {
  switch (kind_) {
    case HfQuantisation::fp8:
      return "FP8";
    case HfQuantisation::int8:
      return "INT8";
    case HfQuantisation::int4:
      return "INT4";
    case HfQuantisation::mxfp4:
      break;
  }
  return "MXFP4";
}

std::string HfQuantiser::config() const {
  if (kind_ == HfQuantisation::mxfp4)
    return OrderedJson{{"quant_method", "mxfp4"},
                       {"modules_to_not_convert",
                        {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}}
        .dump();
  if (kind_ == HfQuantisation::fp8)
    return OrderedJson{{"quant_method", "fp8"},
                       {"activation_scheme", "dynamic"},
                       {"fmt", "e4m3"},
                       {"weight_block_size", {kFp8Block, kFp8Block}},
                       {"modules_to_not_convert", left_out_}}
        .dump();
  const bool grouped = kind_ == HfQuantisation::int4;
  OrderedJson weights = {{"num_bits", grouped ? 4 : 8},
                         {"type", "int"},
                         {"symmetric", true},
                         {"strategy", grouped ? "group" : "channel"},
                         {"group_size", grouped ? OrderedJson(group_) : OrderedJson(nullptr)},
                         {"dynamic", false}};
  OrderedJson group = {{"targets", OrderedJson::array({"Linear"})},
                       {"weights", std::move(weights)},
                       {"input_activations", nullptr},
                       {"output_activations", nullptr}};
  return OrderedJson{{"quant_method", "compressed-tensors"},
                     {"format", "pack-quantized"},
                     {"quantization_status", "compressed"},
                     {"config_groups", {{"group_0", std::move(group)}}},
                     {"ignore", left_out_},
                     {"kv_cache_scheme", nullptr}}
      .dump();
}

}  // namespace witan
