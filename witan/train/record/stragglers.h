// Finds ranks that are slower than the others: a step is as slow as its slowest rank, and who only waits is not to
// blame. A rank's time is that of its steps without its collectives, in which it waits for peers.
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
  double take();  // those since the last call

 private:
  int64_t begin_ns_ = 0, waited_ns_ = 0;
};

// A rank's own times of its last steps.
class RecentSteps {
 public:
  static constexpr size_t kWindow = 20, kLeast = 8;

  void add(double seconds);
  // Their median; nothing before there are kLeast.
  std::optional<double> median() const;

 private:
  std::deque<double> seconds_;
};

// Compares ranks that do equal work: those of the same stage of a pipeline.
class Stragglers {
 public:
  // Of a step: faster ranks are not judged. Threads of a busy machine get unequal time for so little.
  static constexpr double kLeastSeconds = 0.1;

  // `stages`: of each rank. A rank is slow from `threshold` times the median of its peers on, until it is nearer to the
  // median than to that.
  Stragglers(std::vector<int> stages, double threshold);

  struct Change {
    int rank = 0;
    bool slow = false;  // false: it was, and is no more
    double ratio = 0;   // to the median of its peers, itself among them
    double seconds = 0, median = 0;
    int64_t peers = 0;  // ranks of its stage
  };
  // `seconds`: of each rank. Returns the ranks that became slow, or no longer are.
  std::vector<Change> judge(const std::vector<double>& seconds);

 private:
  std::vector<int> stages_;
  double threshold_;
  std::vector<bool> slow_;
};

// What the system calls this host.
std::string name_of_host();

// "rank 3 (host h) takes 1.31 times the median of 4 ranks over the last 20 steps: 0.13 s instead of 0.1 s".
// `where`: what stands in brackets.
std::string describe(const Stragglers::Change& change, const std::string& where);

// One rank's side.
class RankWatch {
 public:
  // Collective over `host`, a group of all ranks on a stream of the host, as judge() is.
  RankWatch(const Layout& layout, double threshold, Group& host, Stream& stream);

  // To be told of the calls of the rank's groups: time in them is not the rank's own.
  CallObserver* observer() { return &waits_; }
  void begin_step() { waits_.take(); }
  // The step took so long, what the rank waited for others included.
  void end_step(double seconds);
  // After every step. Returns, on rank 0, who became slow, or no longer is.
  std::vector<AnomalyEvent> judge(int64_t step, Group& host, Stream& stream);

 private:
  WaitMeter waits_;
  Stragglers stragglers_;
  std::vector<std::string> places_;  // on rank 0: where each rank is
  RecentSteps recent_;
  int64_t steps_ = 0;
};

}  // namespace witan
