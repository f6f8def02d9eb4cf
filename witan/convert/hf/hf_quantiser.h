// The matrices of a Hugging Face folder as they are written quantised: which of them, in which tensors, and what
// config.json says of it.
// Sources: https://huggingface.co/docs/transformers/quantization/finegrained_fp8 and .../compressed_tensors, and
// https://huggingface.co/openai/gpt-oss-20b
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/safetensors_header.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/rounding_error.h"
#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"

namespace witan {

enum class HfQuantisation : uint8_t {
  fp8,    // E4M3 with a float32 scale for each 128 x 128 (DeepSeek-V3's)
  int8,   // compressed-tensors: a scale for each row
  int4,   // compressed-tensors: a scale for each 128 elements of a row, or 32 in a model of other widths
  mxfp4,  // experts of gpt-oss, a scale for each 32 elements of a row
};

// Throws ConfigError for an architecture whose readers do not know the quantisation.
void check_quantisation(HfQuantisation kind, const Architecture& architecture);

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

}  // namespace witan
