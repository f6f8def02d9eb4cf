// The weights of a Megatron-LM checkpoint by Witan's names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/megatron/megatron_args.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan {

class MegatronWeights : public ForeignWeights {
 public:
  // Throws ConfigError for a model that Witan cannot represent, and CheckpointError if a tensor is missing, unexpected,
  // or has a shape or dtype that it cannot have.
  explicit MegatronWeights(const fs::path& folder);

  const ModelConfig& model() const override {
    return read_.model;
  }  // its dtype is the narrowest that can represent all weights
  std::string where() const override { return folder_.path().string(); }

  std::string format() const override { return "megatron"; }
  const Architecture& architecture() const override;
  int64_t positions() const override { return read_.positions; }
  std::vector<Source> sources() const override;
  void release(const Link& link) override;

 private:
  void check_tensors();
  void check_tied_copy();
  Element element_of_tensor(const MegatronTensor& tensor) const;
  HeldTensor hold(const std::string& name) override;

  MegatronFolder folder_;
  MegatronModel read_;
  std::map<std::string, std::vector<std::byte>> whole_;  // tensors that are in several pieces
};

}  // namespace witan
