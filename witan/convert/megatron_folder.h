// A checkpoint of Megatron-LM: "torch_dist" (.metadata and *.distcp) or the legacy mp_rank_XX/model_optim_rng.pt, as
// tensors by one set of names, whatever layout wrote them. All of it is untrusted, and nothing of it is run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/file.h"
#include "witan/convert/megatron_torch_file.h"

namespace witan {

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

// Whether this is the folder of such a checkpoint, or one that holds checkpoints of several iterations.
bool is_megatron_folder(const fs::path& folder);

struct LegacyRanks;

class MegatronFolder {
 public:
  // Takes the latest iteration where there are several. Throws CheckpointError, which says what is wrong, where, and
  // what to do.
  explicit MegatronFolder(const fs::path& folder);

  const fs::path& path() const { return path_; }
  const std::map<std::string, MegatronTensor>& tensors() const { return tensors_; }
  // What the checkpoint holds beside weights, by name, and what it is.
  const std::map<std::string, std::string>& others() const { return others_; }
  // The arguments of the program that wrote it, by name. Throws CheckpointError where it has none.
  std::map<std::string_view, const PickleValue*> arguments() const;

 private:
  void open_torch_dist();
  void open_common();
  void open_legacy();
  int64_t open_legacy_rank(const LegacyRanks& ranks, int64_t rank, int64_t stage, int64_t expert, int64_t layers);
  void add_legacy(const LegacyRanks& ranks, int64_t rank, int64_t expert, const std::string& name,
                  const PlacedTensor& placed, const std::string& where);
  const MappedFile& map(const std::string& name);
  const TorchFile& file(const std::string& name);
  // A box of the tensor that the checkpoint calls so; [L, …] of all layers is taken apart.
  void add(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);
  void add_to_layer(const std::string& name, const std::string& dtype, const Shape& shape, MegatronChunk chunk);
  void check_chunks() const;

  fs::path path_;
  std::map<std::string, MappedFile> mapped_;
  std::map<std::string, TorchFile> files_;  // whose tensors are named by the file: legacy, and common.pt
  std::map<std::string, MegatronTensor> tensors_;
  std::map<std::string, std::string> others_;
  const PickleValue* arguments_ = nullptr;
};

}  // namespace witan
