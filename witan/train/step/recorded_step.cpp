#include "witan/train/step/recorded_step.h"

#include <optional>

namespace witan {
namespace {

// Records the stream's launches while in scope.
class WatchedLaunches {
 public:
  WatchedLaunches(Stream& stream, LaunchObserver* launches) : stream_(stream) { stream_.watch_launches(launches); }
  ~WatchedLaunches() { stream_.watch_launches(nullptr); }
  WatchedLaunches(const WatchedLaunches&) = delete;
  WatchedLaunches& operator=(const WatchedLaunches&) = delete;

 private:
  Stream& stream_;
};

}  // namespace

void RecordedStep::reset() {
  graphs_.clear();
  noted_graph_.reset();
  warm_ = false;
}

void RecordedStep::note_launches(LaunchTrace* launches) {
  noted_graph_.reset();
  launches_ = launches;
}

void RecordedStep::in_ranges(const Compute& step) {
  if (ranges_ == nullptr || stream_.launches() != nullptr) return step();
  const WatchedLaunches shown(stream_, ranges_);
  step();
  ranges_->close();
}

void RecordedStep::queue(const Compute& step, Noted noted) {
  if (launches_ == nullptr || noted == Noted::no) return in_ranges(step);
  noted_graph_.reset();
  launches_->clear(LaunchTrace::Work::queued);
  launches_->start(*stream_.queue());
  const WatchedLaunches watched(stream_, launches_);
  step();
}

void RecordedStep::queue_first(const Compute& step) {
  warm_ = true;
  queue(step);
}

void RecordedStep::replay(const Parts& parts, const Compute& step) {
  if (launches_ != nullptr) return replay_noted(parts, step);
  std::unique_ptr<Graph>& graph = graphs_[parts];
  if (!graph) graph = record(*stream_.queue(), [&] { in_ranges(step); });
  graph->launch();
}

void RecordedStep::replay_noted(const Parts& parts, const Compute& step) {
  if (!noted_graph_ || noted_parts_ != parts) {
    noted_graph_.reset();  // before its moments go
    launches_->clear(LaunchTrace::Work::captured);
    noted_parts_ = parts;
    const WatchedLaunches watched(stream_, launches_);
    noted_graph_ = record(*stream_.queue(), step);
  }
  launches_->start(*stream_.queue());
  noted_graph_->launch();
}

}  // namespace witan
