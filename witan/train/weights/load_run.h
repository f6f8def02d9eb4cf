// Opens a trained run for reading: its newest intact checkpoint, and its model on one rank, of a CPU or a GPU. Nothing
// is written or locked, so that a run can be read while it trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/resolve.h"
#include "witan/train/data/run_data.h"

namespace witan {

// Whether there is a run in the folder: its config.toml or, should that be lost, a checkpoint, which has a copy.
bool holds_run(const fs::path& folder);

// Names of the runs in `runs_folder`, sorted.
std::vector<std::string> list_runs(const fs::path& runs_folder);

// The folder of the named run, or with "" of the latest one. Throws UsageError when there is none, naming those that
// there are.
fs::path find_run(const fs::path& runs_folder, const std::string& name);

// A checkpoint's configuration, with the work of all its ranks done by one.
ResolvedConfig config_for_one_rank(const Checkpoint& checkpoint);

struct RunCheckpoint {
  fs::path folder;  // of the run
  Checkpoint checkpoint;
  std::vector<std::string> warnings;  // damaged checkpoints that were passed over, and weights that @best lacks
};

// The checkpoint that open_run() opens. Throws likewise.
RunCheckpoint open_run_checkpoint(const fs::path& runs_folder, const std::string& name);

struct TrainedRun {
  fs::path folder;
  Checkpoint checkpoint;
  ResolvedConfig config;  // the checkpoint's own copy, for one rank that holds all experts
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::string> warnings;  // damaged checkpoints that were passed over, and weights that @best lacks
};

// Opens the newest whole checkpoint of find_run(), or of "NAME@300" that of step 300, and of "NAME@best" the one of
// lowest validation loss among those that were evaluated (keep_best). A run that is called so, as none begins any more
// (check_new_name()), is opened by its name unless the other one is there too. Throws UsageError, and CheckpointError
// when the run has no such checkpoint (yet), or no tokenizer.
TrainedRun open_run(const fs::path& runs_folder, const std::string& name);

// The run's held-out text and training text as they were divided for training, from its token shards. Throws DataError,
// CorruptionError, IoError.
RunData open_run_data(const TrainedRun& run);

// The device that commands which read a run name: "cpu"; "cuda", the first GPU; "auto": that, if there is one. Throws
// DeviceError where there is no GPU.
Device device_named(const std::string& name);

// The run's model with the checkpoint's weights, in the dtype that it computes in.
class TrainedModel {
 public:
  // What the model is for: it runs on the meta device first, so that the arena is as large as it needs.
  using Work = std::function<void(Stream& stream, Transformer& model)>;

  // Throws CheckpointError when the weights are damaged or of another model, OutOfMemoryError; where the device is a
  // GPU DeviceError, if there is none, and ConfigError for a model of a dtype or of heads that its kernels do not take.
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
};

}  // namespace witan
