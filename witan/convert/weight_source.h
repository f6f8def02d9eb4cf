// A model's weights by Witan's names, read a stretch at a time from wherever they are stored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/convert/adapters.h"
#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"
#include "witan/kernels/quantised/quantised.h"
#include "witan/model/config.h"

namespace witan {

// Lists the parameters and buffers of a model in its order, by building it on the meta device. The configuration must
// be complete (ModelConfig::validate).
std::vector<ModelTensor> tensors_of(const ModelConfig& model);

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& model() const = 0;
  // Names the source in messages.
  virtual std::string where() const = 0;
  // Names and shapes of the weights, without optimizer state.
  virtual std::map<std::string, Shape> weights() const = 0;
  // Reads elements [first, first + count) of the flat tensor, from the float32 master weights if there are any. Throws
  // CheckpointError.
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
  bool has(const std::string& name) const;
  // Makes whole() return matrices with their adapters merged (convert/adapters.h), and model() one without adapters.
  void merge_adapters();
  // Removes the modules of multi-token prediction from model(), and their tensors from the weights.
  void leave_out_mtp();
  bool leaves_out(const std::string& name) const;
  // The matrix that an adapter's tensor is merged into; nothing for other tensors.
  std::optional<std::string> merged_into(const std::string& name) const;
  // The value of a tensor, valid until release(). It is mapped if the checkpoint has it in one piece, and assembled in
  // memory otherwise. Throws CheckpointError.
  HeldTensor whole(const std::string& name);
  // The value of a tensor without adapters; decoded in the model's dtype if it is kept as codes.
  HeldTensor stored(const std::string& name);
  // Releases the pages and the memory of whole().
  void release();

 private:
  // A frozen matrix that is kept as codes.
  struct Coded {
    kernels::WeightFormat format;
    Shape shape;
  };
  const Manifest::Entry& entry(const std::string& name) const;
  const Shape& shape_of(const std::string& name) const;
  // Elements [first, first + count) of the flat tensor, as they are stored.
  void read_bytes(const std::string& key, const Manifest::Entry& from, int64_t first, int64_t count, std::byte* out);
  void decode(const std::string& name, const Coded& coded, int64_t first, std::span<float> out);
  HeldTensor decoded(const std::string& name, const Coded& coded);  // kept as stored() keeps it
  // *found. Throws CheckpointError if it is the end.
  const Manifest::Tensors::value_type& known(Manifest::Tensors::const_iterator found, const std::string& name) const;

  Checkpoint checkpoint_;
  ModelConfig model_;
  std::unique_ptr<Shards> shards_;
  std::map<std::string, Coded> coded_;  // by the parameter's name
  struct Whole {
    HeldTensor held;
    std::vector<std::byte> own;
  };
  std::map<std::string, Whole> whole_, merged_;
  std::vector<AdapterTensors> adapters_;  // that are merged
  double scale_ = 0;
  bool without_mtp_ = false;
};

// Element::f32 for DType::f32; nothing for integers.
std::optional<Element> element_of(DType dtype);

}  // namespace witan
