#include "witan/train/record/stragglers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/median.h"
#include "witan/comm/texts.h"
#include "witan/tensor/observer.h"

namespace witan {
namespace {

std::vector<int> stages_of(const Layout& layout) {
  std::vector<int> stages;
  for (int rank = 0; rank < layout.world_size(); ++rank)
    stages.push_back(layout.mesh().coordinate(rank, Axis::pipeline));
  return stages;
}

}  // namespace

void WaitMeter::begins(const Group&, const Collective&, double) {
  begin_ns_ = steady_ns();
}

void WaitMeter::ends() {
  waited_ns_ += steady_ns() - begin_ns_;
}

double WaitMeter::take() {
  return 1e-9 * static_cast<double>(std::exchange(waited_ns_, 0));
}

void RecentSteps::add(double seconds) {
  seconds_.push_back(seconds);
  if (seconds_.size() > kWindow) seconds_.pop_front();
}

std::optional<double> RecentSteps::median() const {
  if (seconds_.size() < kLeast) return std::nullopt;
  return lower_median({seconds_.begin(), seconds_.end()});
}

Stragglers::Stragglers(std::vector<int> stages, double threshold)
    : stages_(std::move(stages)), threshold_(threshold), slow_(stages_.size(), false) {}

std::vector<Stragglers::Change> Stragglers::judge(const std::vector<double>& seconds) {
  std::vector<Change> changes;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    std::vector<double> peers;
    for (size_t other = 0; other < seconds.size(); ++other)
      if (stages_[other] == stages_[rank]) peers.push_back(seconds[other]);
    // For two ranks the lower median is the faster one's time.
    const double median = lower_median(peers), ratio = median > 0 ? seconds[rank] / median : 1;
    const double bound = slow_[rank] ? (1 + threshold_) / 2 : threshold_;
    const bool slow = ratio >= bound && seconds[rank] >= kLeastSeconds;
    if (slow != slow_[rank])
      changes.push_back({static_cast<int>(rank), slow, ratio, seconds[rank], median, std::ssize(peers)});
    slow_[rank] = slow;
  }
  return changes;
}

std::string name_of_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string describe(const Stragglers::Change& change, const std::string& where) {
  if (!change.slow)
    return fmt::format("rank {} ({}) is no longer slow: {:.2f} times the median of {} ranks", change.rank, where,
                       change.ratio, change.peers);
  return fmt::format(
      "rank {} ({}) takes {:.2f} times the median of {} ranks over the last {} steps: {:.3g} s instead "
      "of {:.3g} s",
      change.rank, where, change.ratio, change.peers, RecentSteps::kWindow, change.seconds, change.median);
}

RankWatch::RankWatch(const Layout& layout, double threshold, Group& host, Stream& stream)
    : stragglers_(stages_of(layout), threshold), places_(gather_texts(host, stream, cat("host ", name_of_host()))) {}

// The first step of a call takes longer than others, and does not count.
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
