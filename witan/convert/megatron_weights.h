// A checkpoint of Megatron-LM as weights under Witan's names: nothing in it is passed over without a word.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/megatron_args.h"
#include "witan/convert/megatron_folder.h"

namespace witan {

class MegatronWeights : public ForeignWeights {
 public:
  // Throws ConfigError for a model that Witan cannot represent, CheckpointError where a tensor is missing, has another
  // shape or a dtype of no weights, or is left over.
  explicit MegatronWeights(const fs::path& folder);

  const ModelConfig& model() const override { return read_.model; }  // in the narrowest dtype that holds all weights
  std::string where() const override { return folder_.path().string(); }
  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  std::string format() const override { return "megatron"; }
  const Architecture& architecture() const override;
  int64_t positions() const override { return read_.positions; }
  const NameStyle& style() const override { return style_; }
  std::vector<Source> sources() const override;
  const std::vector<Link>& links() const override { return links_; }
  const std::vector<ModelTensor>& tensors() const override { return model_tensors_; }
  const std::map<std::string, std::string>& notes() const override { return notes_; }
  void gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out) override;
  void release(const Link& link) override;

 private:
  void check_tensors();
  void check_tied_copy();
  void choose_dtype();
  Element element_of_tensor(const MegatronTensor& tensor) const;
  HeldTensor hold(const std::string& name);

  MegatronFolder folder_;
  MegatronModel read_;
  NameStyle style_;
  std::vector<ModelTensor> model_tensors_;
  std::vector<Link> links_;
  std::map<std::string, std::string> notes_;
  std::map<std::string, std::vector<std::byte>> whole_;  // tensors that are in several pieces
};

}  // namespace witan
