// Quantised tensors of a Hugging Face folder: those of a folder that is read, and the matrices that an export writes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/safetensors_header.h"
#include "witan/convert/elements/elements.h"
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

// Throws ConfigError for an architecture whose readers do not know the quantisation.
void check_quantisation(HfQuantisation kind, const Architecture& architecture);

// The matrices that are written quantised, the tensors that each becomes, and what config.json says of it.
class HfQuantiser {
 public:
  // For the tensors of a folder. `scales`: their dtype, of int8 and int4.
  HfQuantiser(HfQuantisation kind, Element scales, const std::vector<Link>& links);

  // Projections of attention, MLPs and experts, as far as their sizes allow; never embeddings, heads, routers, norms.
  bool takes(const Link& link) const;

  // The tensors that one matrix becomes: those before `codes` and those after it.
  struct Parts {
    std::vector<StoredTensor> before;  // weight_shape of compressed-tensors
    StoredTensor codes, scales;
  };
  Parts parts(const Link& link) const;
  std::vector<std::byte> bytes_before(const Link& link) const;

  // Rows that are quantised at once: whole blocks, and some MiB.
  int64_t rows_of_stretch(const Link& link) const;
  // Appends to the bytes of parts(). Values are whole rows, in the order of the matrix.
  RoundingError quantise(const Link& link, std::span<const float> values, ThreadPool& pool,
                         std::vector<std::byte>& codes, std::vector<std::byte>& scales) const;

  std::string_view name() const;  // "FP8", …, of a ledger
  // quantization_config, as JSON.
  std::string config() const;

 private:
  int64_t groups_of_row(const Link& link) const;
  bool fits(const Link& link) const;

  const HfQuantisation kind_;
  const Element scales_;
  int64_t group_ = 0;                  // of int4
  std::vector<std::string> left_out_;  // modules with matrices that are not quantised
};

// Quantised tensors of a folder that is read: which of its tensors make one, whether they fit each other, and their
// values. All of it is untrusted.
class HfQuantised {
 public:
  // Keeps both.
  HfQuantised(const HfFolder& folder, const HfModel& hf) : folder_(folder), hf_(hf) {}

  // The folder's name of a model's tensor: "X.weight_packed" of "X.weight" where it has that.
  std::string stored_name(const std::string& name) const;
  // The stored tensor that this one is needed to dequantise, if it is the name of such a one: "X.weight" of
  // "X.weight_scale_inv".
  static std::optional<std::string> dequantised_by(const std::string& name);

  // Whether what is stored can be a tensor of this shape.
  bool agrees(const PlacedTensor& stored, const Shape& shape) const;
  // The dtype that a tensor of this shape is read as, after dequantising. Throws CheckpointError, naming the tensors,
  // where its scales are missing, or of another shape or dtype, and for dtypes that are none of weights; ConfigError
  // where config.json does not say how it is quantised.
  Element element_of(const PlacedTensor& stored, const Shape& shape) const;
  bool is_quantised(const PlacedTensor& stored) const;
  // In that dtype.
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
