// Saves a checkpoint in the background while training continues. The saved state changes only in the optimizer's
// update, so that a separate thread can write it in place, without a copy, from the end of one step until just before
// the update of the next.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/host_group.h"

namespace witan {

// One rank's side of background saving. Only the rank's own thread uses it.
class BackgroundSave {
 public:
  // Memory for the collectives of a save, and of a load on stream(). It is separate from the rank's arena, which a
  // second thread must not touch. It is only address space; pages become resident when used.
  static constexpr int64_t kArenaBytes = int64_t{1} << 20;

  // `world`: a group of all ranks that nothing else uses, since training's collectives run at the same time.
  // `timeout_seconds`: how long ranks wait in it for each other's part of a checkpoint.
  BackgroundSave(std::unique_ptr<HostGroup> world, double timeout_seconds);
  // Waits until the save in progress is complete or has failed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Collective: save_checkpoint(), then keep_last() on rank 0. Until finish() returns, the content's tensors must not
  // change, and no other save may start. Throws DeviceError if no thread can be started. The saving thread calls
  // `complete` as soon as the checkpoint is complete.
  void begin(const fs::path& folder, CheckpointContent content, Retention keep, std::function<void()> complete = {});

  struct Saved {
    int64_t step = 0;
    fs::path folder;
    double seconds = 0;  // from begin() to completion
  };
  // Waits for the save in progress, if there is one, and returns its result. Throws its error, the same on all ranks.
  std::optional<Saved> finish();

  HostGroup& world() { return *world_; }
  Stream& stream() { return stream_; }  // only while no save is in progress
  // A deadline for other work with checkpoints over world(), such as "load FOLDER".
  CallDeadline deadline(const std::string& doing) const { return checkpoint_deadline(timeout_seconds_, doing); }

 private:
  std::unique_ptr<HostGroup> world_;
  const double timeout_seconds_;
  ThreadPool pool_;
  Stream stream_;
  CheckpointContent content_;  // of the save in progress; released by this thread
  std::future<Saved> under_way_;
};

}  // namespace witan
