// Loads the state that a rank starts from: a checkpoint when the run resumes or rewinds, or the initial weights that a
// new run takes from another model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/checkpoint/background_save.h"
#include "witan/train/config/resolve.h"
#include "witan/train/data/run_data.h"
#include "witan/train/record/recorder.h"
#include "witan/train/state/run_start.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/engine.h"
#include "witan/train/weights/initial_weights.h"

namespace witan {

// One rank's side. All ranks call its functions together, while no checkpoint is being saved.
class StateLoader {
 public:
  struct Run {
    const ResolvedConfig& config;
    const RunData& data;
    const RunStart& start;
    const std::string& tokenizer;  // tokenizer.json of the run
    Recorder* recorder = nullptr;  // for warnings; null except on rank 0
  };
  // `stream`: the engine's. Loading uses the group and stream of `saving`.
  StateLoader(const Run& run, Engine& engine, Stream& stream, BackgroundSave& saving)
      : run_(run), engine_(engine), stream_(stream), saving_(saving) {}

  // Loads the checkpoint that the run resumes from, or the initial weights of upcycle or init_from; without either, the
  // engine's random weights stay. Returns the state to train from. Throws DataError if the text has changed since the
  // checkpoint was saved, CheckpointError, ConfigError, IoError.
  TrainState begin();

  // Loads a checkpoint of this run into the engine. With no_load_optim, the optimizer and the loss scale begin anew if
  // it is the checkpoint that the run resumed from. Throws CheckpointError, IoError.
  TrainState load(const Checkpoint& from);

 private:
  bool is_rank_zero() const { return run_.recorder != nullptr; }
  TrainState resume(const Checkpoint& from);
  std::vector<ColumnSpec> columns() const;  // that the objective reads
  std::string fingerprint() const;          // of the tokens and these columns
  std::string written_since(const Checkpoint& from) const;
  void upcycle();
  void take_weights();
  void begin_reference();
  void take_reference(const RunConfig& reference);
  void await_weights(const std::string& source);
  // Whether each rank has counted its own parts, or whole tensors that other ranks have counted as well.
  enum class Counted : uint8_t { own_parts, whole_tensors };
  void warn_of_non_finite(const std::map<std::string, int64_t>& own, Counted counted, const std::string& source);
  std::string describe_rounding(const InitialWeights& weights);
  void warn_of_lost_best(const std::string& source);

  const Run run_;
  Engine& engine_;
  Stream& stream_;
  BackgroundSave& saving_;
};

}  // namespace witan
