// Finds stragglers: ranks that are slower than others and hold them up. A rank's time is that of its steps without its
// collectives, in which it waits for peers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "witan/comm/group.h"
#include "witan/parallel/layout.h"
#include "witan/report/events/events.h"

namespace witan {

// Sums the seconds that a rank spends in collectives.
class WaitMeter final : public CallObserver {
 public:
  void begins(const Group& group, const Collective& call, double bytes_sent) override;
  void ends() override;
  double take();  // the seconds since the last call

 private:
  int64_t begin_ns_ = 0, waited_ns_ = 0;
};

// A rank's own times of its last steps.
class RecentSteps {
 public:
  static constexpr size_t kWindow = 20, kLeast = 8;

  void add(double seconds);
  // Their median; nothing for fewer than kLeast steps.
  std::optional<double> median() const;

 private:
  std::deque<double> seconds_;
};

// Compares ranks that do equal work: those of the same pipeline stage.
class Stragglers {
 public:
  // Ranks with faster steps are not judged, since a busy machine divides such short times unevenly among threads.
  static constexpr double kLeastSeconds = 0.1;

  // `stages`: the pipeline stage of each rank. A rank becomes slow at `threshold` times the median of its peers, and
  // stays so until it is nearer to the median than to that bound.
  Stragglers(std::vector<int> stages, double threshold);

  struct Change {
    int rank = 0;
    bool slow = false;  // false: no longer slow
    double ratio = 0;   // to the median of its peers, including itself
    double seconds = 0, median = 0;
    int64_t peers = 0;  // number of ranks of its stage
  };
  // `seconds`: the time of each rank. Returns the ranks that have become slow, or are no longer slow.
  std::vector<Change> judge(const std::vector<double>& seconds);

 private:
  std::vector<int> stages_;
  double threshold_;
  std::vector<bool> slow_;
};

// The host's name.
std::string name_of_host();

// "rank 3 (host h) takes 1.31 times the median of 4 ranks over the last 20 steps: 0.13 s instead of 0.1 s".
// `where` is the text in brackets.
std::string describe(const Stragglers::Change& change, const std::string& where);

// Watches for stragglers while a run trains: one rank's side.
class RankWatch {
 public:
  // Collective over `host`, a group of all ranks on a stream of the host, as judge() is.
  RankWatch(const Layout& layout, double threshold, Group& host, Stream& stream);

  // The observer of the rank's groups, which measures the time in their calls.
  CallObserver* observer() { return &waits_; }
  void begin_step() { waits_.take(); }
  // `seconds`: the duration of the step, including the waits for other ranks.
  void end_step(double seconds);
  // Called after every step. Returns, on rank 0, events for ranks that have become slow, or are no longer slow.
  std::vector<AnomalyEvent> judge(int64_t step, Group& host, Stream& stream);

 private:
  WaitMeter waits_;
  Stragglers stragglers_;
  std::vector<std::string> places_;  // the host of each rank
  RecentSteps recent_;
  int64_t steps_ = 0;
};

}  // namespace witan
