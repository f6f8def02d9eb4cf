#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/elements/scaled_formats.h"
#include "witan/convert/hf/hf_quantiser.h"

namespace witan {
namespace {

constexpr std::string_view kBlocks = "_blocks", kMxScales = "_scales";                 // MXFP4
constexpr std::string_view kFp8Scales = "_scale_inv";                                  // float8
constexpr std::string_view kPacked = "_packed", kScale = "_scale", kShape = "_shape";  // compressed-tensors
constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::string_view kMxScaleTypes[] = {"U8"}, kFp8ScaleTypes[] = {"F32", "BF16", "F16", "F8_E8M0"},
                           kPackedScaleTypes[] = {"BF16", "F32", "F16"}, kShapeTypes[] = {"I64", "I32"};

std::string replaced(const std::string& name, std::string_view suffix, std::string_view by) {
  return name.substr(0, name.size() - suffix.size()) + std::string(by);
}

bool is_mxfp4(const PlacedTensor& stored) {
  return stored.info.name.ends_with(kBlocks) && stored.info.dtype == "U8";
}
bool is_packed(const PlacedTensor& stored) {
  return stored.info.name.ends_with(kPacked) && stored.info.dtype == "I32";
}
bool is_fp8(const PlacedTensor& stored) {
  return stored.info.dtype == "F8_E4M3";
}

Shape leading_dims(const Shape& shape) {
  Shape first;
  for (int dim = 0; dim + 1 < shape.dims(); ++dim) first.append(shape[dim]);
  return first;
}

int64_t whole_number(const PlacedTensor& tensor, size_t i) {
  if (tensor.info.dtype == "I64") {
    int64_t value = 0;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
    return value;
  }
  int32_t value = 0;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

std::string HfQuantised::stored_name(const std::string& name) const {
  if (!name.ends_with(kWeightSuffix) || folder_.find(name) != nullptr) return name;
  const std::string packed = cat(name, kPacked);
  return folder_.find(packed) != nullptr ? packed : name;
}

std::optional<std::string> HfQuantised::dequantised_by(const std::string& name) {
  for (const auto& [suffix, of] : {std::pair{kFp8Scales, std::string_view()}, std::pair{kMxScales, kBlocks},
                                   std::pair{kScale, kPacked}, std::pair{kShape, kPacked}})
    if (name.ends_with(suffix)) return replaced(name, suffix, of);
  return std::nullopt;
}

bool HfQuantised::agrees(const PlacedTensor& stored, const Shape& shape) const {
  const Shape& own = stored.info.shape;
  const int last = shape.dims() - 1;
  if (stored.info.name.ends_with(kBlocks))
    return own.dims() == shape.dims() + 1 && shape[last] % kMxGroup == 0 && own.elements() * 2 == shape.elements() &&
           own.last() == kMxGroup / 2 && own[last] * kMxGroup == shape[last];
  if (is_packed(stored))
    return shape.dims() == 2 && own.dims() == 2 && own[0] == shape[0] && hf_.packed_bits > 0 &&
           own[1] == packed_words(shape[1], hf_.packed_bits);
  return own == shape;
}

std::string HfQuantised::where(const std::string& name) const {
  return (folder_.path() / folder_.shard_of(name)).string() + ": \"" + clipped(name) + '"';
}

const PlacedTensor& HfQuantised::needed(const std::string& by, const std::string& name,
                                        std::span<const std::string_view> dtypes, const Shape& shape) const {
  const PlacedTensor* found = folder_.find(name);
  require<CheckpointError>(
      found != nullptr && std::ranges::find(dtypes, found->info.dtype) != dtypes.end() && found->info.shape == shape,
      where(by), " needs ", name.ends_with(kShape) ? "\"" : "the scales \"", name, "\", ", dtypes.front(), " ", shape,
      ": they are missing, or of another shape or dtype");
  return *found;
}

Element HfQuantised::element_of(const PlacedTensor& stored, const Shape& shape) const {
  const std::string& name = stored.info.name;
  const Shape& own = stored.info.shape;
  if (is_packed(stored)) return element_of_packed(stored, shape);
  if (is_mxfp4(stored)) {
    needed(name, replaced(name, kBlocks, kMxScales), kMxScaleTypes, leading_dims(own));
    return Element::bf16;
  }
  const Element element = element_from_name(stored.info.dtype, where(name));
  if (element != Element::f8_e4m3 && element != Element::f8_e8m0) return element;
  require<ConfigError>(element == Element::f8_e4m3 && hf_.fp8_block > 0 && own.dims() == 2, where(name), " is ",
                       stored.info.dtype, " ", own, ", but ", kHfConfig,
                       " has no quantization_config that says by which scales it is multiplied");
  const auto blocks = [&](int64_t size) { return (size + hf_.fp8_block - 1) / hf_.fp8_block; };
  needed(name, cat(name, kFp8Scales), kFp8ScaleTypes, {blocks(own[0]), blocks(own[1])});
  return Element::bf16;
}

// All groups of a row have one size, and there is a scale for each.
Element HfQuantised::element_of_packed(const PlacedTensor& stored, const Shape& shape) const {
  const std::string &name = stored.info.name, by = replaced(name, kPacked, kScale);
  const PlacedTensor* scales = folder_.find(by);
  const int64_t groups =
      scales != nullptr && scales->info.shape.dims() == 2 ? std::max<int64_t>(scales->info.shape[1], 1) : 1;
  needed(name, by, kPackedScaleTypes, {shape[0], groups});
  require<CheckpointError>(shape[1] % groups == 0, where(name), " has rows of ", shape[1], " and ", groups,
                           " scales for each, in \"", by, "\": Witan reads groups of one size");
  const PlacedTensor& sizes = needed(name, replaced(name, kPacked, kShape), kShapeTypes, Shape{2});
  require<CheckpointError>(whole_number(sizes, 0) == shape[0] && whole_number(sizes, 1) == shape[1], where(name),
                           " is [", whole_number(sizes, 0), ", ", whole_number(sizes, 1), "] by \"", sizes.info.name,
                           "\", but ", kHfConfig, " asks for ", shape, ": one of the two is another model's");
  return element_from_name(scales->info.dtype, by);
}

bool HfQuantised::is_quantised(const PlacedTensor& stored) const {
  return is_mxfp4(stored) || is_packed(stored) || is_fp8(stored);
}

std::vector<std::byte> HfQuantised::dequantise(const PlacedTensor& stored, const Shape& shape) const {
  const std::string& name = stored.info.name;
  if (is_mxfp4(stored)) return dequantise_mxfp4(stored.bytes, folder_.find(replaced(name, kBlocks, kMxScales))->bytes);
  const PlacedTensor& scales = *folder_.find(is_fp8(stored) ? cat(name, kFp8Scales) : replaced(name, kPacked, kScale));
  const Element type = element_from_name(scales.info.dtype, scales.info.name);
  return is_fp8(stored) ? dequantise_fp8_blocks(stored.bytes, type, scales.bytes, shape[0], shape[1], hf_.fp8_block)
                        : dequantise_packed(stored.bytes, type, scales.bytes, shape[0], shape[1], scales.info.shape[1],
                                            hf_.packed_bits);
}

}  // namespace witan
