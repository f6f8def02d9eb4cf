#include "witan/checkpoint/background_save.h"

#include <cassert>
#include <chrono>
#include <system_error>
#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/trace_context.h"

namespace witan {

BackgroundSave::BackgroundSave(std::unique_ptr<HostGroup> world, double timeout_seconds)
    : world_(std::move(world)),
      timeout_seconds_(timeout_seconds),
      pool_(1),
      stream_({Device::Kind::cpu}, Arena::reserve(kArenaBytes), pool_) {}

BackgroundSave::~BackgroundSave() {
  if (under_way_.valid()) under_way_.wait();
}

void BackgroundSave::begin(const fs::path& folder, CheckpointContent content, Retention keep,
                           std::function<void()> complete) {
  assert(!under_way_.valid());
  const auto start = std::chrono::steady_clock::now();
  content_ = std::move(content);
  stream_.trace_context() = {.step = content_.step, .phase = TraceContext::Phase::saving};
  const auto save = [this, folder, keep = std::move(keep), start, complete = std::move(complete)] {
    const DeadlineScope patience(*world_, deadline(cat("save step ", content_.step, " to ", folder.string())));
    Saved saved{content_.step, save_checkpoint(*world_, stream_, folder, content_), 0};
    if (complete) complete();
    run_collectively(*world_, stream_, [&] {
      if (world_->rank() == 0) keep_last(folder, keep);
    });
    saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return saved;
  };
  try {
    under_way_ = std::async(std::launch::async, save);
  } catch (const std::system_error& e) {
    throw DeviceError(cat("cannot start the checkpoint-saving thread: ", e.what()));
  }
}

std::optional<BackgroundSave::Saved> BackgroundSave::finish() {
  if (!under_way_.valid()) return std::nullopt;
  under_way_.wait();
  content_ = {};
  return under_way_.get();
}

}  // namespace witan
