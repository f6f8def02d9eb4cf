// Quantised tensors of a Hugging Face folder: which of its tensors make one, whether they fit each other, and their
// values. All of it is untrusted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/convert/elements/elements.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"

namespace witan {

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
