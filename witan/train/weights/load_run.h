// Opens a trained run for reading: its newest intact checkpoint, and its model on one rank, on a CPU or a GPU. Nothing
// is written or locked, so that a run can be read while it trains.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/resolve.h"
#include "witan/train/data/run_data.h"

namespace witan {

// Whether the folder holds a run: its config.toml or, if that is lost, a checkpoint, which has a copy.
bool holds_run(const fs::path& folder);

// Names of the runs in `runs_folder`, sorted.
std::vector<std::string> list_runs(const fs::path& runs_folder);

// The folder of the named run, or for "" of the latest one. Throws UsageError if there is none, listing the existing
// runs.
fs::path find_run(const fs::path& runs_folder, const std::string& name);

// A checkpoint's configuration, changed to one rank that does the work of all.
ResolvedConfig config_for_one_rank(const Checkpoint& checkpoint);

struct RunCheckpoint {
  fs::path folder;  // of the run
  Checkpoint checkpoint;
  std::vector<std::string> warnings;  // about skipped checkpoints, and better ones that @best has lost
};

// The checkpoint that open_run() opens. Throws what it throws, but needs no tokenizer.
RunCheckpoint open_run_checkpoint(const fs::path& runs_folder, const std::string& name);

struct TrainedRun {
  fs::path folder;
  Checkpoint checkpoint;
  ResolvedConfig config;  // config_for_one_rank()
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::string> warnings;  // as of RunCheckpoint
};

// Opens the newest intact checkpoint of find_run(). "NAME@300" opens that of step 300, "NAME@best" the one of lowest
// validation loss (keep_best). An old run whose name has an @ (check_new_name()) is opened by its name unless that is
// ambiguous. Throws UsageError, and CheckpointError if the run has no such checkpoint yet, or no tokenizer.
TrainedRun open_run(const fs::path& runs_folder, const std::string& name);

// The frozen reference of the run's objective, as a run whose model has its weights; nothing: the objective compares
// with none that computes. If it is the model below the run's adapters (ReferenceKind::base) it has these too, and they
// must be off (ModelServices::adapters_off). Throws CheckpointError if its weights are lost.
std::optional<TrainedRun> reference_run(const TrainedRun& run);

// The run's training and held-out text, split as in training, from its token shards. Throws DataError, CorruptionError,
// IoError.
RunData open_run_data(const TrainedRun& run);

// The device of a --device flag: "cpu"; "cuda", the first GPU; "auto", a GPU if there is one. Throws UsageError for
// other names, and DeviceError for "cuda" without a GPU.
Device device_named(const std::string& name);

// The run's model with the checkpoint's weights, in its compute dtype.
class TrainedModel {
 public:
  // The work that the model is for. It runs on the meta device first, to find the size of the arena.
  using Work = std::function<void(Stream& stream, Transformer& model)>;

  // Throws CheckpointError if the weights are damaged or those of another model, and OutOfMemoryError; on GPUs also
  // DeviceError if there is none, and ConfigError for a model that the GPU kernels do not support.
  TrainedModel(const TrainedRun& run, int threads, const Work& work, Device device = {});
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  Stream& stream() { return stream_; }
  Transformer& model() { return model_; }

 private:
  Groups groups_;  // of a world of one
  ThreadPool pool_;
  Stream stream_;
  Transformer model_;
  CodedUnits units_;
};

}  // namespace witan
