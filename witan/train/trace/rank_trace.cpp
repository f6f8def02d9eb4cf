#include "witan/train/trace/rank_trace.h"

#include <fmt/core.h>

#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/arena.h"

namespace witan {
namespace {

// Of a pass, all modules are one; of a module, its ops are.
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
  constexpr std::pair<Track, const char*> kTracks[] = {{kSteps, "steps"},         {kPasses, "passes"},
                                                       {kModules, "modules"},     {kKernels, "computation"},
                                                       {kCalls, "communication"}, {kWaits, "waits"}};
  for (const auto& [track, of] : kTracks) trace_.name_track(track, of);
}

ChromeTrace::Args RankTrace::place() const {
  const TraceContext& trace_context = stream_.trace_context();
  ChromeTrace::Args args;
  if (!trace_context.module.empty()) args.emplace_back("module", json_text(trace_context.module));
  if (!trace_context.op.empty()) args.emplace_back("op", json_text(trace_context.op));
  if (trace_context.micro_batch >= 0) args.emplace_back("micro_batch", fmt::format("{}", trace_context.micro_batch));
  return args;
}

void RankTrace::kernel(Stream&, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) {
  if (full()) return;
  touch(begin_ns, end_ns);
  ChromeTrace::Args args = place();
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
  touch(call_.begin_ns, end_ns);
  ChromeTrace::Args args = place();
  args.emplace_back("axis", json_text(call_.axis));
  args.emplace_back("ranks", fmt::format("{}", call_.ranks));
  args.emplace_back("bytes_sent", text_of(call_.bytes));
  args.emplace_back("call", json_text(call_.tensor));
  if (!done) args.emplace_back("ended", "false");
  trace_.slice(kCalls, call_.name, call_.begin_ns, end_ns, args);
  sample_memory(end_ns);
}

void RankTrace::waited(std::string_view what, int64_t begin_ns, int64_t end_ns) {
  trace_.slice(kWaits, what, begin_ns, end_ns);
}

void RankTrace::step(int64_t number, int64_t begin_ns, int64_t end_ns) {
  close(pass_, kPasses);
  close(module_, kModules);
  trace_.slice(kSteps, cat("step ", number), begin_ns, end_ns);
}

void RankTrace::touch(int64_t begin_ns, int64_t end_ns) {
  extend(pass_, kPasses, pass_of(stream_.trace_context()), begin_ns, end_ns);
  extend(module_, kModules, module_of(stream_.trace_context()), begin_ns, end_ns);
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

// Where it has changed.
void RankTrace::sample_memory(int64_t at_ns) {
  const Arena& arena = stream_.arena();
  if (std::exchange(live_bytes_, arena.live()) == arena.live()) return;
  ChromeTrace::Args series;
  for (int tag = 0; tag < kMemoryTags; ++tag)
    series.emplace_back(name_of(static_cast<MemoryTag>(tag)),
                        fmt::format("{}", arena.live(static_cast<MemoryTag>(tag))));
  trace_.counter("memory, bytes", at_ns, series);
}

std::string RankTrace::json() {
  close_call(/*done=*/false);
  close(pass_, kPasses);
  close(module_, kModules);
  return trace_.json();
}

}  // namespace witan
