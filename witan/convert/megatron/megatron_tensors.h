// The tensors of a Megatron-LM checkpoint by one set of names, assembled from the pieces in its files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/convert/megatron/megatron_pickle.h"
#include "witan/tensor/shape.h"

namespace witan {

inline constexpr std::string_view kMegatronDecoderLayers = "decoder.layers.";

// A box of a tensor, contiguous in a file.
struct MegatronChunk {
  Shape offsets, sizes;
  std::span<const std::byte> bytes;
};

// A tensor by Megatron-Core's name for a single layer, "decoder.layers.3.self_attention.linear_qkv.weight". The experts
// of a layer are one tensor [E, out, in], and norms have names of their own ("input_layernorm", "pre_mlp_layernorm").
struct MegatronTensor {
  std::string name, dtype;
  Shape shape;
  std::vector<MegatronChunk> chunks;
};

class MegatronTensors {
 public:
  // `where` names the checkpoint in messages.
  explicit MegatronTensors(std::string where) : where_(std::move(where)) {}

  // Adds a box of the tensor with this name in the checkpoint; a tensor [L, …] of all layers is split by layer. Throws
  // CheckpointError for a box that contradicts earlier ones.
  void add(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);
  // Throws CheckpointError unless every element of each tensor is in exactly one of its pieces.
  void check() const;

  const std::map<std::string, MegatronTensor>& all() const { return all_; }

 private:
  void add_to_layer(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);

  std::string where_;
  std::map<std::string, MegatronTensor> all_;
};

// The contents of a checkpoint.
struct MegatronContents {
  MegatronTensors tensors;
  const PickleValue* arguments = nullptr;          // of the program that wrote it; null if there are none
  std::map<std::string, std::string> others = {};  // notes on everything beside weights, by name
};

// A note on an entry that is not a weight.
std::string megatron_note_of(std::string_view name);
// Splits "12.mlp.router.weight" into 12 and ".mlp.router.weight"; nothing if it does not begin with a number.
std::optional<std::pair<int64_t, std::string_view>> leading_number(std::string_view text);

}  // namespace witan
