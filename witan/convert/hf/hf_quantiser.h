// Quantised tensors of a Hugging Face folder, read and written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/error_feedback.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"

namespace witan {

// How an export quantises matrices.
// Sources: https://huggingface.co/docs/transformers/quantization/finegrained_fp8 and .../compressed_tensors, and
// https://huggingface.co/openai/gpt-oss-20b
enum class HfQuantisation : uint8_t {
  fp8,    // E4M3 with a float32 scale for each 128 x 128 (DeepSeek-V3's)
  int8,   // compressed-tensors: a scale for each row
  int4,   // compressed-tensors: a scale for each 128 elements of a row, or 32 in a model of other widths
  mxfp4,  // experts of gpt-oss, a scale for each 32 elements of a row
};

// Throws ConfigError for an architecture that cannot be read with this quantisation.
void check_quantisation(HfQuantisation kind, const Architecture& architecture);

// Chooses the matrices to quantise, the tensors that each becomes, and the quantization_config.
class HfQuantiser {
 public:
  // `links` are the folder's tensors. `scales` is the dtype of scales for int8 and int4.
  HfQuantiser(HfQuantisation kind, Element scales, const std::vector<Link>& links);

  // Whether the matrix is quantised: a projection of attention, MLPs or experts whose sizes allow it. Embeddings,
  // heads, routers and norms never are.
  bool takes(const Link& link) const;

  // The tensors that one matrix becomes, in this order.
  struct Parts {
    std::vector<StoredTensor> before;  // weight_shape of compressed-tensors
    StoredTensor codes, scales;
  };
  Parts parts(const Link& link) const;
  std::vector<std::byte> bytes_before(const Link& link) const;

  // The number of rows to quantise at a time: whole blocks, a few MiB.
  int64_t rows_of_stretch(const Link& link) const;
  // Appends the bytes of parts() for whole rows, which come in the order of the matrix. `feedback` is for int4.
  RoundingError quantise(const Link& link, std::span<const float> values, ThreadPool& pool,
                         std::vector<std::byte>& codes, std::vector<std::byte>& scales,
                         const ErrorFeedback* feedback = nullptr) const;

  std::string_view name() const;  // "FP8", … in a ledger
  // quantization_config, as JSON.
  std::string config() const;

 private:
  int64_t groups_of_row(const Link& link) const;
  bool fits(const Link& link) const;

  const HfQuantisation kind_;
  const Element scales_;
  int64_t group_ = 0;                  // elements with one int4 scale
  std::vector<std::string> left_out_;  // modules with matrices that are not quantised
};

// Dequantises the tensors of a folder that is read. Everything in it is untrusted: the tensors that make up one
// quantised tensor must fit each other.
class HfQuantised {
 public:
  // Keeps references.
  HfQuantised(const HfFolder& folder, const HfModel& hf) : folder_(folder), hf_(hf) {}

  // The folder's name for a model's tensor: "X.weight_packed" for "X.weight" if the folder has it.
  std::string stored_name(const std::string& name) const;
  // The quantised tensor that a tensor of this name belongs to, such as "X.weight" for "X.weight_scale_inv"; nothing if
  // it belongs to none.
  static std::optional<std::string> dequantised_by(const std::string& name);

  // Whether the stored tensor can hold one of this shape.
  bool agrees(const PlacedTensor& stored, const Shape& shape) const;
  // The dtype of the tensor after dequantising. Throws CheckpointError naming the tensors if scales are missing or have
  // another shape or dtype, and for a dtype that weights cannot have; ConfigError if config.json does not say how the
  // tensor is quantised.
  Element element_of(const PlacedTensor& stored, const Shape& shape) const;
  bool is_quantised(const PlacedTensor& stored) const;
  // Returns the values in the dtype of element_of().
  std::vector<std::byte> dequantise(const PlacedTensor& stored, const Shape& shape) const;

 private:
  std::string where(const std::string& name) const;
  const PlacedTensor& needed(const std::string& by, const std::string& name, std::span<const std::string_view> dtypes,
                             const Shape& shape) const;
  Element element_of_packed(const PlacedTensor& stored, const Shape& shape) const;

  const HfFolder& folder_;
  const HfModel& hf_;
};

}  // namespace witan
