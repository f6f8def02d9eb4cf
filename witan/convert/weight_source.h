// Weights of a model under Witan's names, wherever they are kept, read a stretch at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/shards.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/adapters.h"
#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

// The parameters and buffers of a model, in the order in which it has them. The configuration must be complete
// (ModelConfig::validate). Nothing is computed.
std::vector<ModelTensor> tensors_of(const ModelConfig& model);

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& model() const = 0;
  // What it is and where, for messages.
  virtual std::string where() const = 0;
  // Names and shapes of the weights, without optimizer state.
  virtual std::map<std::string, Shape> weights() const = 0;
  // Elements [first, first + count) of the flat tensor; the float32 masters of narrower values, where there are some.
  // Throws CheckpointError.
  virtual void read(const std::string& name, int64_t first, int64_t count, double* out) = 0;
};

// The weights of a checkpoint, whatever layout wrote it.
class CheckpointWeights : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, ModelConfig model);

  const ModelConfig& model() const override { return model_; }
  std::string where() const override { return checkpoint_.folder.string(); }
  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  const Checkpoint& checkpoint() const { return checkpoint_; }
  bool has(const std::string& name) const { return checkpoint_.manifest.tensors.contains(name); }
  // From now on whole() of a matrix that has adapters is that of both (convert/adapters.h), and model() has none.
  void merge_adapters();
  // From now on model() has no modules of multi-token prediction, and their tensors no place.
  void leave_out_mtp();
  bool leaves_out(const std::string& name) const;
  // Of an adapter's tensor the matrix that it is merged into; nothing of others.
  std::optional<std::string> merged_into(const std::string& name) const;
  // The whole value of a tensor, valid until release(); mapped, where the checkpoint has it in one piece, else put
  // together in memory. Throws CheckpointError.
  HeldTensor whole(const std::string& name);
  // The same as the checkpoint has it.
  HeldTensor stored(const std::string& name);
  // Gives the pages and the memory of whole() back.
  void release();

 private:
  const Manifest::Entry& entry(const std::string& name) const;

  Checkpoint checkpoint_;
  ModelConfig model_;
  std::unique_ptr<Shards> shards_;
  struct Whole {
    HeldTensor held;
    std::vector<std::byte> own;
  };
  std::map<std::string, Whole> whole_, merged_;
  std::vector<AdapterTensors> adapters_;  // that are merged
  double scale_ = 0;
  bool without_mtp_ = false;
};

// "F32" of DType::f32; of integers nothing.
std::optional<Element> element_of(DType dtype);

}  // namespace witan
