// Watches, in a run, for ranks that are slower than the others (train/record/stragglers.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/report/events/events.h"
#include "witan/train/record/stragglers.h"

namespace witan {

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
