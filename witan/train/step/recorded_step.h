// A GPU's step as one CUDA graph, and what is shown of a step's launches: the trace of a few steps, NVTX ranges.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "witan/optim/param_groups.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/recording.h"
#include "witan/train/run/config.h"
#include "witan/train/trace/launch_trace.h"
#include "witan/train/trace/place_ranges.h"

namespace witan {

// Why a run's steps on a GPU are launched kernel by kernel, as a sentence; empty where a step is one recorded graph. A
// meta device answers for the one that it stands for.
std::string why_eager(const RunConfig& config, const Groups& groups, const ParamGroups& param_groups);

class RecordedStep {
 public:
  // Queues a whole step on the stream.
  using Compute = std::function<void()>;
  // The parts that a step has, of those that only some steps have (StepFeatures::launches): each combination is a
  // graph.
  using Parts = std::vector<bool>;

  // The stream must outlive it.
  explicit RecordedStep(Stream& stream) : stream_(stream) {}

  // Drops all graphs: what a step computes, or where its inputs lie, has changed.
  void reset();

  // From now on each step's launches are noted there as they are queued, without waiting for any; null: no longer. A
  // step that is one graph is recorded once more for that.
  void note_launches(LaunchTrace* launches);
  // Emits NVTX ranges around what steps queue, or capture, but for traced steps; null: no longer.
  void show_ranges(PlaceRanges* ranges) { ranges_ = ranges; }

  // Queues a step kernel by kernel. `Noted::no`: not in the trace, as a part of a step that is.
  enum class Noted : bool { no, yes };
  void queue(const Compute& step, Noted noted = Noted::yes);

  // Whether no step was queued since the graphs were dropped: libraries are loaded and choose their kernels in a first
  // step, which therefore cannot be recorded.
  bool is_first() const { return !warm_; }
  void queue_first(const Compute& step);
  // Replays the graph of a step of these parts, recording it if there is none.
  void replay(const Parts& parts, const Compute& step);

 private:
  void in_ranges(const Compute& step);
  void replay_noted(const Parts& parts, const Compute& step);

  Stream& stream_;
  bool warm_ = false;
  std::map<Parts, std::unique_ptr<Graph>> graphs_;
  PlaceRanges* ranges_ = nullptr;       // null: none are shown
  LaunchTrace* launches_ = nullptr;     // null: launches are not noted
  std::unique_ptr<Graph> noted_graph_;  // the step, recorded with their moments; null until such a step comes
  Parts noted_parts_;
};

}  // namespace witan
