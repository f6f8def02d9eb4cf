// Steps on a GPU as one CUDA graph each, and how their launches are shown: in traces of a few steps, as NVTX ranges.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "witan/optim/param_groups.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/queue.h"
#include "witan/train/config/config.h"
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
  // The optional kernels that a step launches (StepFeatures::launches): each combination is a graph.
  using Parts = std::vector<bool>;

  // The stream must outlive it.
  explicit RecordedStep(Stream& stream) : stream_(stream) {}

  // Drops all graphs, because the step or the addresses of its inputs have changed.
  void reset();

  // Notes each step's launches there as they are queued, without waiting for any; nullptr ends that. A step that is one
  // graph is recorded once more for it.
  void note_launches(LaunchTrace* launches);
  // Emits NVTX ranges around the work of steps that are not traced; nullptr ends that.
  void show_ranges(PlaceRanges* ranges) { ranges_ = ranges; }

  // Queues a step kernel by kernel. `Noted::no`: not in the trace, as a part of a step that is.
  enum class Noted : bool { no, yes };
  void queue(const Compute& step, Noted noted = Noted::yes);

  // Whether no step was queued since the graphs were dropped. A first step cannot be recorded, since libraries are
  // loaded and choose their kernels in it.
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
  std::unique_ptr<Graph> noted_graph_;  // the step, recorded with timestamps of launches; null until there is one
  Parts noted_parts_;
};

}  // namespace witan
