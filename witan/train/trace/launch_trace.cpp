#include "witan/train/trace/launch_trace.h"

#include <algorithm>
#include <utility>

namespace witan {

void LaunchTrace::clear(Work work) {
  work_ = work;
  timestamps_->clear();
  lanes_.clear();
  entries_.clear();
  open_.clear();
}

size_t LaunchTrace::lane_of(const Stream& stream) {
  if (lanes_.empty() && stream.is_side()) lanes_.push_back({nullptr});  // the first lane is the main stream's
  const auto found = std::ranges::find(lanes_, &stream, &Lane::stream);
  if (found != lanes_.end()) return static_cast<size_t>(found - lanes_.begin());
  if (!stream.is_side() && !lanes_.empty()) {
    lanes_.front().stream = &stream;
    return 0;
  }
  lanes_.push_back({&stream});
  return lanes_.size() - 1;
}

// The previous captured launch ends when this one begins, unless the stream waits for another one in between.
void LaunchTrace::begins(Stream& stream) {
  Lane& lane = lanes_[lane_of(stream)];
  if (!lane.last || work_ == Work::queued) lane.last = timestamps_->mark(*stream.queue());
  open_.push_back({*lane.last, std::exchange(lane.waiting, {})});
}

void LaunchTrace::ends(Stream& stream, QueuedWork work) {
  const size_t at = lane_of(stream);
  lanes_[at].last = timestamps_->mark(*stream.queue());
  const Open open = open_.back();
  open_.pop_back();
  Entry& entry = entries_.emplace_back(Entry{std::move(work),
                                             stream.trace_context(),
                                             static_cast<int>(at),
                                             open.begin,
                                             *lanes_[at].last,
                                             open.waited_since,
                                             {}});
  for (int tag = 0; tag < kMemoryTags; ++tag)
    entry.live[static_cast<size_t>(tag)] = stream.arena().live(static_cast<MemoryTag>(tag));
}

void LaunchTrace::follows(Stream& stream) {
  Lane& lane = lanes_[lane_of(stream)];
  if (lane.last && !lane.waiting) lane.waiting = lane.last;
  lane.last.reset();
}

void LaunchTrace::write(RankTrace& trace) {
  const std::vector<int64_t> timestamps = timestamps_->read();
  for (const Entry& entry : entries_) {
    const int64_t begin_ns = timestamps[entry.begin], end_ns = timestamps[entry.end];
    if (entry.waited_since && begin_ns > timestamps[*entry.waited_since])
      trace.waited(entry.lane == 0 ? "work beside" : "the main stream", timestamps[*entry.waited_since], begin_ns,
                   entry.lane);
    trace.launch(entry.work, entry.context, entry.lane, begin_ns, end_ns);
    trace.memory(end_ns, entry.live);
  }
}

}  // namespace witan
