// The layout of a safetensors file, whatever the dtypes of its tensors: the header as it is written, and as it is read
// from untrusted bytes (docs/formats/safetensors.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tensor/shape.h"

namespace witan {

// A tensor as the header describes it.
struct StoredTensor {
  std::string name;
  std::string dtype;  // of the format: "F32", "BF16", "F8_E4M3" …
  Shape shape;
  uint64_t bytes = 0;
};
struct PlacedTensor {
  StoredTensor info;
  std::span<const std::byte> bytes;  // of the file
};

// Bytes of an element of this dtype; throws CheckpointError("WHERE: …") for one that is not supported.
using ElementBytes = std::function<int64_t(std::string_view dtype, std::string_view where)>;
// The one that knows all dtypes which released models are stored in.
int64_t stored_element_bytes(std::string_view dtype, std::string_view where);

// The header's length, the JSON and the spaces that align what follows, of tensors that stand in this order.
// {"format": "pt"} is added to the metadata. Throws CheckpointError for a name that appears twice, or a header over 100
// MB.
std::string safetensors_header(const std::vector<StoredTensor>& order, std::map<std::string, std::string> metadata,
                               std::string_view where);

// The tensors in the order of their bytes, which cover the data without holes or overlaps. Throws CheckpointError,
// which names the file, the tensor, the expected and the found value.
std::vector<PlacedTensor> parse_safetensors(std::span<const std::byte> file, std::string_view where,
                                            const ElementBytes& bytes_of, std::map<std::string, std::string>& metadata);

}  // namespace witan
