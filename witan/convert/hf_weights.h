// A Hugging Face folder as weights under Witan's names: nothing in it is passed over without a word.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/hf_config.h"
#include "witan/convert/hf_folder.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

// What to do with the layers that predict further tokens (multi-token prediction), which come after the model's own.
enum class MtpLayers : bool { take, leave_out };

class HfWeights : public ForeignWeights {
 public:
  // Reads config.json and opens the weights. Throws ConfigError for a model that Witan cannot represent,
  // CheckpointError where a tensor is missing, has another shape or a dtype of no weights, or is left over.
  explicit HfWeights(const fs::path& folder, MtpLayers mtp = MtpLayers::take);

  const ModelConfig& model() const override { return hf_.model; }  // in the narrowest dtype that holds all weights
  std::string where() const override { return folder_.path().string(); }
  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  std::string format() const override { return "hf"; }
  const Architecture& architecture() const override { return *hf_.architecture; }
  int64_t positions() const override { return hf_.positions; }
  const NameStyle& style() const override { return style_; }
  std::vector<Source> sources() const override;
  const std::vector<Link>& links() const override { return links_; }
  const std::vector<ModelTensor>& tensors() const override { return model_tensors_; }
  const std::map<std::string, std::string>& notes() const override { return notes_; }
  void gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out) override;
  void release(const Link& link) override;

  const HfModel& hf() const { return hf_; }
  const HfFolder& folder() const { return folder_; }

 private:
  bool shape_agrees(const PlacedTensor& found, const Shape& expected) const;
  Element element_of_source(const std::string& name) const;
  bool holds_mtp_layers() const;
  void choose_dtype();
  void check_tensors(MtpLayers mtp);
  void account_for(const std::string& name, const PlacedTensor& tensor, MtpLayers mtp,
                   std::vector<std::string>& left_over);
  bool is_mtp_copy(const std::string& name, const PlacedTensor& tensor);
  bool scales_of_others(const std::string& name);
  void check_tied_copy(const PlacedTensor& head);
  void check_mtp_copies() const;
  HeldTensor hold(const std::string& name);

  HfFolder folder_;
  HfModel hf_;
  NameStyle style_;
  std::vector<ModelTensor> model_tensors_;
  std::vector<Link> links_;
  std::map<std::string, size_t> index_;  // of links_
  std::map<std::string, std::string> notes_;
  std::map<std::string, Shape> used_;  // tensors that links are made of
  std::map<std::string, std::vector<std::byte>> dequantised_;
};

}  // namespace witan
