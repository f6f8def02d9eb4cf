// The configuration tells here which parameters of a model are trained: its adapters of low rank, the parameters that
// are frozen, and the formats in which frozen matrices are kept.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/kernels/quantised/quantised.h"
#include "witan/model/config.h"
#include "witan/nn/lora.h"
#include "witan/nn/parameter.h"

namespace witan {

// The adapters of low rank; null: none. Throws ConfigError for a target that is not the name of a matrix.
std::shared_ptr<const LoraConfig> lora_of(const ModelConfig& config);

// The parameters that are not trained: those that `freeze` matches; if there are adapters, all but the adapters;
// indexers without a loss, or in their warm-up all but the indexers.
class Freeze {
 public:
  explicit Freeze(const ModelConfig& config);

  bool any() const { return lora_ || indexers_ || all_but_indexers_ || !patterns_.empty(); }
  bool takes(const ParameterSpec& spec) const;
  // The patterns of config.freeze, in order: each is the name of a ParameterKind, or a glob on parameters' names.
  const std::vector<std::string>& patterns() const { return patterns_; }
  static bool fits(const std::string& pattern, const ParameterSpec& spec);

  // The format in which a parameter is kept: another than `none` only for frozen matrices of layers, experts and an
  // untied head, whose rows are whole groups of it. It depends on the model alone, never on the layout.
  kernels::WeightFormat format(const ParameterSpec& spec) const;
  bool matrices_in_codes() const { return matrices_ != kernels::WeightFormat::none; }

 private:
  bool lora_, indexers_, all_but_indexers_;
  std::vector<std::string> patterns_;
  kernels::WeightFormat matrices_, experts_, head_;
};

// The tensors of a checkpoint that hold a parameter's codes: NAME.nf4_codes [.., in / 8], int32 words of codes, and
// NAME.nf4_scales [.., in / group * scales].
struct CodedNames {
  CodedNames(const std::string& parameter, kernels::WeightFormat format);
  std::string words, scales;
};
// The part of a parameter's codes that a tensor of such a name holds.
struct CodedPart {
  std::string parameter;
  kernels::WeightFormat format;
  bool scales;  // else words
};
std::optional<CodedPart> coded_part(std::string_view tensor);  // nullopt for other names

// Whether some matrices are kept in another format than the model's dtype.
bool keeps_codes(const ModelConfig& config);

}  // namespace witan
