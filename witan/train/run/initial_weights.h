// The first weights of a new run from those of another model: a run, a checkpoint or a Hugging Face folder. Weights
// alone: the optimizer, the schedule and the data begin anew, under any layout and in any dtype.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/convert/weight_source.h"
#include "witan/tensor/device.h"
#include "witan/train/run/config.h"

namespace witan {

// What `where` names: a Hugging Face folder, a checkpoint's folder, a run's, or the name of a run in `runs_folder`, of
// the latter two also RUN@best and RUN@STEP.
// `asked`, "init_from = X: " or so, begins messages. Adds a sentence to `warnings` for every damaged checkpoint of a
// run that is skipped. Throws CheckpointError where there is none, and what reading it throws.
std::unique_ptr<WeightSource> open_weights(const std::string& where, const fs::path& runs_folder,
                                           const std::string& asked, std::vector<std::string>& warnings);

// Its tokenizer.json, where it has one.
std::optional<fs::path> tokenizer_of(const WeightSource& source);
// Copies what an export gives back besides weights (convert/ledger.h) to a run's folder.
void copy_companions_of(const WeightSource& source, const fs::path& run);

// Throws ConfigError naming a key in which the model is another function than the source's weights are of.
void require_same_function(const ModelConfig& model, const WeightSource& source, const std::string& asked);

class InitialWeights {
 public:
  // Opens config.train.init_from. Throws CheckpointError, and ConfigError naming the keys in which the two models
  // compute different functions, or the tensor that one of them lacks.
  explicit InitialWeights(const RunConfig& config);

  // Fills the values, masters and buffers among a rank's tensors; others stay, and so do buffers that the source lacks.
  // On the stream's device, which nobody else uses.
  void fill(Stream& stream, const std::vector<StateTensor>& state);

  // Of the parameters and buffers that fill() has filled on this rank, those that it writes of them: how many values
  // are NaN or infinite, by the tensor's name.
  const std::map<std::string, int64_t>& non_finite() const { return non_finite_; }

  const WeightSource& source() const { return *source_; }
  // Damaged checkpoints that were passed over.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void check() const;
  void fill(const StateTensor& to, const std::string& name);

  const RunConfig& config_;
  std::vector<std::string> warnings_;
  std::unique_ptr<WeightSource> source_;
  std::map<std::string, Shape> weights_;  // of the source
  std::map<std::string, int64_t> non_finite_;
};

}  // namespace witan
