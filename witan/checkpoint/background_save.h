// Saving while training goes on. What a checkpoint holds changes in the optimizer's update alone, so that a thread of
// its own writes it from where it lies, without a copy, from the end of one step until just before the update of the
// next.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "witan/base/threads.h"
#include "witan/checkpoint/store.h"

namespace witan {

// One rank's end. Used by one thread, its rank's.
class BackgroundSave {
 public:
  // What the collectives of a save, and of a load on stream(), have of memory: beside the rank's own arena, which a
  // second thread must not touch. Address space; pages become real as they are used.
  static constexpr int64_t kArenaBytes = int64_t{1} << 20;

  // `world`: a group of all ranks that nobody else uses, as training's collectives go on meanwhile.
  explicit BackgroundSave(std::unique_ptr<Group> world);
  // Waits until the save under way is complete, or has failed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Collective: save_checkpoint(); once that is done, keep_last() of the `keep` newest, by rank 0. Until finish() has
  // returned the content's tensors must keep their values, and no other save may begin. Throws DeviceError when there
  // is no thread to be had. `complete` is called by the thread that saves, as soon as the checkpoint is complete.
  void begin(const fs::path& folder, CheckpointContent content, int64_t keep, std::function<void()> complete = {});

  struct Saved {
    int64_t step = 0;
    fs::path folder;
    double seconds = 0;  // from begin() until it was complete
  };
  // Waits for the save under way, if there is one, and returns what it made. Throws its error, on all ranks the same.
  std::optional<Saved> finish();

  Group& world() { return *world_; }
  Stream& stream() { return stream_; }  // while no save is under way

 private:
  std::unique_ptr<Group> world_;
  ThreadPool pool_;
  Stream stream_;
  CheckpointContent content_;  // of the save under way: its tensors are this thread's to release
  std::future<Saved> under_way_;
};

}  // namespace witan
