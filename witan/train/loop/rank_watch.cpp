#include "witan/train/loop/rank_watch.h"

#include "witan/base/error.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

std::vector<int> stages_of(const Layout& layout) {
  std::vector<int> stages;
  for (int rank = 0; rank < layout.world_size(); ++rank)
    stages.push_back(layout.mesh().coordinate(rank, Axis::pipeline));
  return stages;
}

}  // namespace

RankWatch::RankWatch(const Layout& layout, double threshold, Group& host, Stream& stream)
    : stragglers_(stages_of(layout), threshold), places_(gather_texts(host, stream, cat("host ", name_of_host()))) {}

// The first step of a call is no measure.
void RankWatch::end_step(double seconds) {
  const double own = seconds - waits_.take();
  if (++steps_ > 1) recent_.add(own);
}

std::vector<AnomalyEvent> RankWatch::judge(int64_t step, Group& host, Stream& stream) {
  constexpr int64_t kEvery = 5;  // steps
  const auto own = recent_.median();
  if (!own || steps_ % kEvery != 0) return {};
  std::vector<double> seconds;
  for (const int64_t ns : gather_numbers(host, stream, static_cast<int64_t>(*own * 1e9)))
    seconds.push_back(static_cast<double>(ns) * 1e-9);
  std::vector<AnomalyEvent> events;
  if (host.rank() != 0) return events;
  for (const Stragglers::Change& change : stragglers_.judge(seconds))
    events.push_back(
        {.step = step, .what = "straggler", .text = describe(change, places_[static_cast<size_t>(change.rank)])});
  return events;
}

}  // namespace witan
