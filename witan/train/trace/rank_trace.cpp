#include "witan/train/trace/rank_trace.h"

#include <fmt/core.h>

#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/arena.h"

namespace witan {
namespace {

// The context of the pass, without its module and op; and below that of the module, without its op.
TraceContext pass_of(const TraceContext& trace_context) {
  TraceContext pass = trace_context;
  pass.module = pass.op = {};
  return pass;
}
TraceContext module_of(const TraceContext& trace_context) {
  TraceContext module = trace_context;
  module.op = {};
  return module;
}

std::string text_of(double value) {
  return fmt::format("{}", value);
}

}  // namespace

RankTrace::RankTrace(Stream& stream, int rank, std::string_view name, int64_t origin_ns)
    : stream_(stream), trace_(rank, name, origin_ns) {
  live_.fill(-1);
  constexpr std::pair<Track, const char*> kTracks[] = {{kSteps, "steps"},         {kPasses, "passes"},
                                                       {kModules, "modules"},     {kKernels, "computation"},
                                                       {kCalls, "communication"}, {kWaits, "waits"}};
  for (const auto& [track, of] : kTracks) trace_.name_track(track, of);
}

ChromeTrace::Args RankTrace::place(const TraceContext& context) {
  ChromeTrace::Args args;
  if (!context.module.empty()) args.emplace_back("module", json_text(context.module));
  if (!context.op.empty()) args.emplace_back("op", json_text(context.op));
  if (context.micro_batch >= 0) args.emplace_back("micro_batch", fmt::format("{}", context.micro_batch));
  return args;
}

void RankTrace::kernel(Stream&, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) {
  if (full()) return;
  const TraceContext& context = stream_.trace_context();
  touch(context, begin_ns, end_ns);
  ChromeTrace::Args args = place(context);
  args.emplace_back("flops", text_of(cost.flops));
  args.emplace_back("bytes", text_of(cost.bytes));
  trace_.slice(kKernels, name, begin_ns, end_ns, args);
  sample_memory(end_ns);
}

void RankTrace::begins(const Group& group, const Collective& call, double bytes_sent) {
  call_ = {std::string(name_of(call.kind)), group.name(), describe(call), group.size(), bytes_sent, steady_ns(), true};
}

void RankTrace::met() {
  if (call_.open && !full()) waited(cat("peers of ", call_.name, ", ", call_.axis), call_.begin_ns, steady_ns());
}

void RankTrace::ends() {
  close_call(/*done=*/true);
}

void RankTrace::close_call(bool done) {
  if (!std::exchange(call_.open, false) || full()) return;
  const int64_t end_ns = steady_ns();
  const TraceContext& context = stream_.trace_context();
  touch(context, call_.begin_ns, end_ns);
  ChromeTrace::Args args = place(context);
  args.emplace_back("axis", json_text(call_.axis));
  args.emplace_back("ranks", fmt::format("{}", call_.ranks));
  args.emplace_back("bytes_sent", text_of(call_.bytes));
  args.emplace_back("call", json_text(call_.tensor));
  if (!done) args.emplace_back("ended", "false");
  trace_.slice(kCalls, call_.name, call_.begin_ns, end_ns, args);
  sample_memory(end_ns);
}

void RankTrace::waited(std::string_view what, int64_t begin_ns, int64_t end_ns, int lane) {
  trace_.slice(lane == 0 ? kWaits : track_beside(lane), lane == 0 ? what : cat("waits for ", what), begin_ns, end_ns);
}

int RankTrace::track_beside(int lane) {
  for (; lanes_ < lane; ++lanes_) trace_.name_track(kBeside + lanes_, cat("beside ", lanes_ + 1));
  return kBeside + lane - 1;
}

void RankTrace::launch(const QueuedWork& work, const TraceContext& context, int lane, int64_t begin_ns,
                       int64_t end_ns) {
  if (full()) return;
  ChromeTrace::Args args = place(context);
  if (work.ranks > 0) {
    args.emplace_back("axis", json_text(work.axis));
    args.emplace_back("ranks", fmt::format("{}", work.ranks));
    args.emplace_back("bytes_sent", text_of(work.bytes_sent));
    args.emplace_back("call", json_text(work.call));
  } else {
    args.emplace_back("flops", text_of(work.cost.flops));
    args.emplace_back("bytes", text_of(work.cost.bytes));
  }
  if (lane == 0) touch(context, begin_ns, end_ns);
  const int track = lane > 0 ? track_beside(lane) : work.ranks > 0 ? kCalls : kKernels;
  trace_.slice(track, work.name, begin_ns, end_ns, args);
}

void RankTrace::step(int64_t number, int64_t begin_ns, int64_t end_ns) {
  close(pass_, kPasses);
  close(module_, kModules);
  trace_.slice(kSteps, cat("step ", number), begin_ns, end_ns);
}

void RankTrace::touch(const TraceContext& context, int64_t begin_ns, int64_t end_ns) {
  extend(pass_, kPasses, pass_of(context), begin_ns, end_ns);
  extend(module_, kModules, module_of(context), begin_ns, end_ns);
}

void RankTrace::extend(Span& span, Track track, const TraceContext& of, int64_t begin_ns, int64_t end_ns) {
  if (!span.open || span.of != of) {
    close(span, track);
    span = {of, begin_ns, end_ns, true};
  }
  span.end_ns = end_ns;
}

void RankTrace::close(Span& span, Track track) {
  if (!std::exchange(span.open, false)) return;
  TraceContext of = span.of;
  of.step = 0;
  const std::string name = track == kModules ? std::string(of.module) : describe(of);
  if (!name.empty()) trace_.slice(track, name, span.begin_ns, span.end_ns);
}

void RankTrace::sample_memory(int64_t at_ns) {
  std::array<int64_t, kMemoryTags> live{};
  for (int tag = 0; tag < kMemoryTags; ++tag)
    live[static_cast<size_t>(tag)] = stream_.arena().live(static_cast<MemoryTag>(tag));
  memory(at_ns, live);
}

// Adds a sample if memory has changed.
void RankTrace::memory(int64_t at_ns, const std::array<int64_t, kMemoryTags>& live) {
  if (std::exchange(live_, live) == live || full()) return;
  ChromeTrace::Args series;
  for (int tag = 0; tag < kMemoryTags; ++tag)
    series.emplace_back(name_of(static_cast<MemoryTag>(tag)), fmt::format("{}", live[static_cast<size_t>(tag)]));
  trace_.counter("memory, bytes", at_ns, series);
}

std::string RankTrace::json() {
  close_call(/*done=*/false);
  close(pass_, kPasses);
  close(module_, kModules);
  return trace_.json();
}

}  // namespace witan
