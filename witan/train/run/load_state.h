// What a rank of a run trains on from: a checkpoint of the run, when it resumes or goes back, or the first weights that
// a new run takes from another model.
#pragma once

#include <map>
#include <string>

#include "witan/checkpoint/background_save.h"
#include "witan/train/record/recorder.h"
#include "witan/train/run/resolve.h"
#include "witan/train/run/run_data.h"
#include "witan/train/run/run_start.h"
#include "witan/train/run/train_state.h"
#include "witan/train/step/engine.h"

namespace witan {

// One rank's side of it: all ranks call its functions together, while no checkpoint is being saved.
class StateLoader {
 public:
  struct Run {
    const ResolvedConfig& config;
    const RunData& data;
    const RunStart& start;
    const std::string& tokenizer;  // tokenizer.json of the run
    Recorder* recorder = nullptr;  // of rank 0, which warns; null in others
  };
  // `stream`: the engine's. `saving`: whose group and stream load, too.
  StateLoader(const Run& run, Engine& engine, Stream& stream, BackgroundSave& saving)
      : run_(run), engine_(engine), stream_(stream), saving_(saving) {}

  // What the run begins this call with: the state of the checkpoint that it resumes from, or that of a new run, whose
  // weights are those of config.train.upcycle or init_from, or stay as the engine has drawn them. Throws DataError
  // where the text is not that of the checkpoint's run, CheckpointError, ConfigError, IoError.
  TrainState begin();

  // All that a checkpoint of this run holds, into the engine; but for the optimizer's state with no_load_optim, where
  // the run resumes from it. Throws CheckpointError, IoError.
  TrainState load(const Checkpoint& from);

 private:
  bool is_rank_zero() const { return run_.recorder != nullptr; }
  TrainState resume(const Checkpoint& from);
  std::string written_since(const Checkpoint& from) const;
  void upcycle();
  void take_weights();
  void await_weights(const std::string& source);
  // Whether each rank has counted what is its own, or what it read of tensors as a whole, as others have too.
  enum class Counted : uint8_t { own_parts, whole_tensors };
  void warn_of_non_finite(const std::map<std::string, int64_t>& own, Counted counted, const std::string& source);
  void warn_of_lost_best(const std::string& source);

  const Run run_;
  Engine& engine_;
  Stream& stream_;
  BackgroundSave& saving_;
};

}  // namespace witan
