// The weights of a Hugging Face folder by Witan's names.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/hf/hf_quantiser.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

class HfWeights : public ForeignWeights {
 public:
  // Reads config.json and opens the weights. Throws ConfigError for a model that Witan cannot represent, and
  // CheckpointError if a tensor is missing, unexpected, or has a shape or dtype that it cannot have.
  explicit HfWeights(const fs::path& folder, MtpLayers mtp = MtpLayers::take);

  const ModelConfig& model() const override {
    return hf_.model;
  }  // its dtype is the narrowest that can represent all weights
  std::string where() const override { return folder_.path().string(); }

  std::string format() const override { return "hf"; }
  const Architecture& architecture() const override { return *hf_.architecture; }
  int64_t positions() const override { return hf_.positions; }
  std::vector<Source> sources() const override;
  void release(const Link& link) override;

  const HfModel& hf() const { return hf_; }
  const HfFolder& folder() const { return folder_; }
  // The tensors of a vision-language model that are not of its text decoder, and those for keys and values in layers
  // that borrow them, sorted by name.
  std::vector<PlacedTensor> side_tensors() const;

 private:
  Element element_of_source(const std::string& name) const;
  // Whether a tensor, which the model has no place for, is kept beside it and exported again.
  bool is_kept_aside(const std::string& name) const;
  void require_tensors_for(int64_t count, const char* of_what) const;
  bool holds_mtp_layers() const;
  bool holds_experts_in_out() const;
  void check_tensors(MtpLayers mtp);
  void account_for(const std::string& name, const PlacedTensor& tensor, MtpLayers mtp,
                   std::vector<std::string>& left_over);
  bool is_mtp_copy(const std::string& name, const PlacedTensor& tensor);
  bool is_companion(const std::string& name);
  void check_tied_copy(const PlacedTensor& head);
  void check_mtp_copies() const;
  HeldTensor hold(const std::string& name) override;

  HfFolder folder_;
  HfModel hf_;
  const HfQuantised quantised_{folder_, hf_};
  std::map<std::string, Shape> used_;  // linked tensors, with their dequantised shapes
  std::map<std::string, std::vector<std::byte>> dequantised_;
};

}  // namespace witan
