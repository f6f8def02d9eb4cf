// The tensors of a checkpoint of Megatron-LM by one set of names, put together from the pieces that its files hold.
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

// A box of a tensor, whose elements lie in a file one after the other.
struct MegatronChunk {
  Shape offsets, sizes;
  std::span<const std::byte> bytes;
};

// Named as Megatron-Core names a layer of its own: "decoder.layers.3.self_attention.linear_qkv.weight", experts of a
// layer in one tensor [E, out, in], norms apart ("input_layernorm", "pre_mlp_layernorm").
struct MegatronTensor {
  std::string name, dtype;
  Shape shape;
  std::vector<MegatronChunk> chunks;
};

class MegatronTensors {
 public:
  // `where` names the checkpoint in messages.
  explicit MegatronTensors(std::string where) : where_(std::move(where)) {}

  // A box of the tensor that the checkpoint calls so; [L, …] of all layers is taken apart. Throws CheckpointError for
  // one that does not go with those before.
  void add(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);
  // Throws CheckpointError unless every element of each tensor is in exactly one of its pieces.
  void check() const;

  const std::map<std::string, MegatronTensor>& all() const { return all_; }

 private:
  void add_to_layer(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);

  std::string where_;
  std::map<std::string, MegatronTensor> all_;
};

// What a checkpoint holds.
struct MegatronContents {
  MegatronTensors tensors;
  const PickleValue* arguments = nullptr;          // of the program that wrote it; null: there are none
  std::map<std::string, std::string> others = {};  // beside weights, by name, and what it is
};

// Of something that is no weight: what it is.
std::string megatron_note_of(std::string_view name);
// "12.mlp.router.weight" as 12 and ".mlp.router.weight"; nothing when it begins with no number.
std::optional<std::pair<int64_t, std::string_view>> leading_number(std::string_view text);

}  // namespace witan
