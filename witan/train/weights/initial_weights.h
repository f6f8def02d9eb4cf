// The initial weights of a new run from those of another model: a run, a checkpoint, or a model of another program.
// Only weights are taken, for any layout and dtype: the optimizer, the schedule and the data start afresh.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/weight_source.h"
#include "witan/nn/parameter.h"
#include "witan/tensor/device.h"
#include "witan/train/config/config.h"

namespace witan {

// Opens the weights that `where` names: a Hugging Face folder, PEFT's folder of adapters, a GGUF file, a Megatron-LM
// checkpoint, a checkpoint's or a run's folder, the name of a run in `runs_folder`, or RUN@best and RUN@STEP. `base`
// names the base model of adapters likewise; empty: the one that their folder names. `asked`, such as
// "init_from = X: ", begins messages. Adds a sentence to `warnings` for every damaged checkpoint of a run that is
// skipped. Throws CheckpointError if there are no such weights, and what reading them throws.
std::unique_ptr<WeightSource> open_weights(const std::string& where, const fs::path& runs_folder,
                                           const std::string& asked, std::vector<std::string>& warnings,
                                           const std::string& base = {});
// What adapters are to be loaded on, if `where` names PEFT's folder of them: `base`, or what the folder names. `where`
// itself otherwise.
std::string base_model_of(const std::string& where, const std::string& base);

// The source's tokenizer, if it has one: a tokenizer.json, or a GGUF file.
std::optional<fs::path> tokenizer_of(const WeightSource& source);
// A run's ledger of the PEFT folder that its adapters came from.
inline constexpr const char* kAdapterLedger = "adapters-ledger.json";
// Copies the files that an export returns besides weights (convert/ledger.h) to the run's folder, and writes the ledger
// of adapters.
void copy_companions_of(const WeightSource& source, const fs::path& run);

// Throws ConfigError naming a key by which the model computes another function than the source's.
void require_same_function(const ModelConfig& model, const WeightSource& source, const std::string& asked);

class InitialWeights {
 public:
  // Opens config.train.init_from, which must outlive it and in messages is the value of `key`. Throws CheckpointError,
  // also naming a tensor that one of the models lacks, and what require_same_function() throws.
  explicit InitialWeights(const RunConfig& config, const std::string& key = "init_from");

  // Fills the values, masters and buffers among a rank's tensors, and encodes the parameters that are kept as codes.
  // The others, and buffers that the source lacks, stay. Needs sole use of the stream's device.
  void fill(Stream& stream, const std::vector<StateTensor>& state, const std::vector<Parameter*>& parameters);

  // How many values that fill() has filled are NaN or infinite, by the tensor's name; counted on the rank that writes
  // them to checkpoints.
  const std::map<std::string, int64_t>& non_finite() const { return non_finite_; }

  // What fill() lost of frozen matrices by encoding them, of this rank's own parts, by the name of the format.
  const std::map<std::string, RoundingError>& rounding() const { return rounding_; }

  const WeightSource& source() const { return *source_; }
  // About damaged checkpoints that were skipped.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void check() const;
  void fill(const StateTensor& to, const std::string& name);
  void encode(Stream& stream, const Parameter& to, bool counts);
  // Reads elements [begin, end) of the region, in its own order, of which there are zeros behind those of the source.
  void read(const std::string& name, const Shape& global, const Region& region, int64_t begin, int64_t end,
            std::vector<double>& values);

  const RunConfig& config_;
  const std::string asked_;  // "init_from = X: "
  std::vector<std::string> warnings_;
  std::unique_ptr<WeightSource> source_;
  std::map<std::string, Shape> weights_;  // the source's
  std::map<std::string, int64_t> non_finite_;
  std::map<std::string, RoundingError> rounding_;
};

}  // namespace witan
