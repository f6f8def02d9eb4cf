#include "witan/train/trace/step_tracer.h"

#include <cstdlib>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

fs::path file_of(const RunFolder& folder, int rank) {
  return folder.traces() / cat("rank-", rank, ".json");
}

}  // namespace

std::string name_of_rank(const Layout& layout, int rank) {
  std::string text = cat("rank ", rank);
  const char* before = ": ";
  for (const Axis axis : layout.world_axes()) {
    text += cat(before, name_of(axis), " ", layout.mesh().coordinate(rank, axis));
    before = ", ";
  }
  return text;
}

void remove_traces(const RunFolder& folder) {
  fs::remove_all(folder.traces());
  fs::remove(folder.trace());
}

void merge_traces(const RunFolder& folder, int ranks) {
  std::vector<fs::path> files;
  for (int rank = 0; rank < ranks; ++rank)
    if (fs::exists(file_of(folder, rank))) files.push_back(file_of(folder, rank));
  if (!files.empty()) merge_chrome_traces(files, folder.trace());
}

StepTracer::StepTracer(World& world, const RunFolder& folder, const Groups& groups, Stream& stream,
                       const std::optional<StepRange>& range)
    : folder_(folder), groups_(groups), stream_(stream), range_(range) {
  if (range_) control_group_.emplace(world, groups.rank(), "trace");
}

StepTracer::~StepTracer() {
  if (!trace_) return;
  stop();
  try {
    write();
  } catch (const std::exception&) {  // the rank's own error matters more
  }
}

fs::path StepTracer::file() const {
  return file_of(folder_, groups_.rank());
}

void StepTracer::observe(RankTrace* trace) {
  stream_.observe(trace);
  for (Group* group : groups_.all()) group->observe(trace);
}

void StepTracer::stop() {
  if (!launches_) return observe(nullptr);
  note_(nullptr);
  launches_.reset();
}

void StepTracer::begin() {
  const int64_t origin = common_moment_ns(control_group_->stream(), control_group_->group());
  create_folders(folder_.traces());
  trace_ = std::make_unique<RankTrace>(stream_, groups_.rank(), name_of_rank(groups_.layout(), groups_.rank()), origin);
  if (!note_) return observe(trace_.get());
  launches_ = std::make_unique<LaunchTrace>(make_timestamps(stream_.device()));
  note_(launches_.get());
}

void StepTracer::before_step(int64_t number) {
  if (range_ && !trace_ && number == range_->first) begin();
  step_begin_ns_ = steady_ns();
}

void StepTracer::after_step(int64_t number) {
  if (!trace_) return;
  if (launches_) launches_->write(*trace_);
  trace_->step(number, step_begin_ns_, steady_ns());
  if (number >= range_->last) return finish();
  if (2 * trace_->bytes() > 3 * written_) write();
}

void StepTracer::write() {
  written_ = trace_->bytes();
  write_file_atomically(file(), trace_->json());
}

void StepTracer::finish() {
  if (!trace_) return;
  stop();
  write();
  trace_.reset();
  control_group_->group().barrier(control_group_->stream());  // until all have written
  if (groups_.rank() == 0) merge_traces(folder_, groups_.layout().world_size());
}

StepTracer::Wait::Wait(StepTracer& tracer, std::string_view what)
    : tracer_(tracer), what_(what), begin_ns_(steady_ns()) {}

StepTracer::Wait::~Wait() {
  if (tracer_.trace_) tracer_.trace_->waited(what_, begin_ns_, steady_ns());
}

int64_t first_clock_ahead_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock) {
  constexpr int kTrips = 8;
  const Tensor word = stream.zeros({1}, DType::i64, MemoryTag::communication);
  int64_t ahead = 0, shortest = -1;
  for (int peer = 1; peer < world.size(); ++peer) {
    for (int trip = 0; trip < kTrips; ++trip) {
      if (world.rank() == 0) {
        world.recv(stream, word, peer);
        *word.data<int64_t>() = clock();
        world.send(stream, word, peer);
      } else if (world.rank() == peer) {
        const int64_t asked = clock();
        world.send(stream, word, 0);
        world.recv(stream, word, 0);
        const int64_t answered = clock();
        if (shortest >= 0 && answered - asked >= shortest) continue;
        shortest = answered - asked;
        ahead = *word.data<int64_t>() - (asked + answered) / 2;
      }
    }
  }
  return std::abs(ahead) <= shortest ? 0 : ahead;
}

int64_t common_moment_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock) {
  const int64_t ahead = first_clock_ahead_ns(stream, world, clock);
  const Tensor moment = stream.empty({1}, DType::i64, MemoryTag::communication);
  *moment.data<int64_t>() = clock();
  world.broadcast(stream, moment, 0);
  return *moment.data<int64_t>() - ahead;
}

}  // namespace witan
