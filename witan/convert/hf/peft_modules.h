// The modules of transformers that PEFT adapts, for the adapters of one of Witan's models
// (https://huggingface.co/docs/peft/developer_guides/checkpoint).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/convert/adapters.h"
#include "witan/convert/joined_rows.h"
#include "witan/convert/tensor_names.h"

namespace witan {

// The files of a folder of adapters.
inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

// An adapter's rows within its module: its row n is the module's row n / own * of_group + first + n % own.
struct PeftRows {
  AdapterTensors of;
  int64_t first = 0, own = 0, of_group = 0;

  int64_t row(int64_t n) const { return n / own * of_group + first + n % own; }
};

// A module of transformers, or a parameter of one, that PEFT adapts. It may hold the rows of several of Witan's
// matrices, whose adapters are one there: their A one after the other, and B with a block for each and zeros elsewhere.
struct PeftModule {
  std::string path;         // below its layer: "self_attn.q_proj", "mlp.experts.down_proj", "mlp.up_proj.weight"
  std::string key;          // "base_model.model.model.layers.0.self_attn.q_proj.lora_"
  bool parameter = false;   // in target_parameters
  bool transposed = false;  // the matrix is [in, out], as in GPT-2
  int64_t rows = 0;
  std::vector<PeftRows> parts = {};  // in the order of their rows

  int64_t rank() const { return parts.front().of.rank() * static_cast<int64_t>(parts.size()); }
  int64_t matrices() const { return parts.front().of.matrices(); }
  int64_t covered() const;  // rows with an adapter
  std::string a() const { return key + "A.weight"; }
  std::string b() const { return key + "B.weight"; }
  std::string magnitudes() const { return key + "magnitude_vector"; }
};

class PeftModules {
 public:
  // Places all adapters of the model.
  PeftModules(const Architecture& architecture, const ModelConfig& model);

  const std::vector<PeftModule>& all() const { return modules_; }
  // Why the first adapter without a place has none; empty if all have one.
  const std::string& refusal() const { return refusal_; }
  // The target_modules of adapter_config.json that select these modules and no other.
  std::vector<std::string> targets() const;

 private:
  const TensorRule* rule_of(const AdapterTensors& adapter, std::string_view below) const;
  void place(const AdapterTensors& adapter);
  std::string refusal_of(const AdapterTensors& adapter, const TensorRule* rule) const;
  bool names_parameter(const AdapterTensors& adapter, std::string_view in_layer) const;

  const Architecture& architecture_;
  const ModelConfig& model_;
  const std::vector<ModelTensor> tensors_;
  const RowsByName rows_;
  std::vector<PeftModule> modules_;
  std::string refusal_;
};

}  // namespace witan
