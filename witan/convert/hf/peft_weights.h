// The untrusted adapters of a PEFT folder beside the weights of their base model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/checkpoint/safetensors.h"
#include "witan/convert/hf/peft_modules.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

// The base_model_name_or_path of a folder's adapter_config.json; empty if it has none. Throws CheckpointError for a
// damaged file.
std::string base_of_adapters(const fs::path& folder);

class PeftWeights : public WeightSource {
 public:
  // Reads adapter_config.json and adapter_model.safetensors (docs/lora.md) on a base model of this architecture, whose
  // modules' names the tensors have. Throws ConfigError naming a key of the configuration that Witan's adapters cannot
  // represent, and CheckpointError naming a tensor that is missing, damaged, of another shape, or that the model has no
  // place for.
  PeftWeights(fs::path folder, std::unique_ptr<WeightSource> base, const Architecture& architecture);

  // The base's, with the keys of adapters (lora_dropout, a key of training, aside).
  const ModelConfig& model() const override { return model_; }
  std::string where() const override { return folder_.string(); }
  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  const WeightSource& base() const { return *base_; }
  // Every tensor of the folder with the adapters that it became, and the reverse.
  Ledger ledger() const;

 private:
  enum class Factor : uint8_t { a, b, magnitude };
  // The tensors of the folder from which one of Witan's is made.
  struct Source {
    const PeftModule* module;
    size_t part;
    Factor factor;
    Shape shape;

    const PeftRows& rows() const { return module->parts[part]; }
    std::string tensor() const;
  };

  void read_config();
  void choose_targets(const Architecture& architecture);
  bool holds(const PeftModule& module) const;
  void check_module(const PeftModule& module);
  void check_scale(const PeftModule& module, int64_t rank) const;
  void check_zeros(const PeftModule& module) const;
  void check_left_over() const;
  const PlacedTensor& tensor(const std::string& name) const;
  // Whether the parts of a module share one A, instead of a block of rows each.
  bool shares_factor(const PeftModule& module) const;
  double value(const PlacedTensor& of, int64_t at) const;
  void read_factor(const Source& source, int64_t first, int64_t count, double* out) const;
  void read_magnitudes(const Source& source, int64_t first, int64_t count, double* out);

  const fs::path folder_;
  const std::unique_ptr<WeightSource> base_;
  const std::string architecture_;
  ModelConfig model_;
  std::vector<std::string> parameters_;   // target_parameters
  std::map<std::string, int64_t> ranks_;  // rank_pattern
  std::map<std::string, double> alphas_;  // alpha_pattern
  bool transposed_ = false;               // fan_in_fan_out
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, PlacedTensor> tensors_;
  std::unique_ptr<PeftModules> modules_;
  std::map<std::string, Source> sources_;  // by Witan's name
};

}  // namespace witan
