// The places of the passes of a pipeline's stage in memory. Several micro-batches are under way in a stage; each has
// the blocks of one that was there before it, so that memory repeats as the passes do, and as little of it lies idle at
// the end of a step as at its beginning.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "witan/parallel/pipeline_steps.h"
#include "witan/tensor/arena.h"

namespace witan {

class PassPlaces {
 public:
  explicit PassPlaces(const Pipeline& pipeline) : pipeline_(pipeline) {}

  // What the step allocates in, until the next step; null: anywhere, where nothing is allocated or one micro-batch is
  // under way at a time.
  Arena::Places* of(const PipelineStep& step);

 private:
  using Slot = int;  // of a chunk: as many as micro-batches are under way in it
  Slot slot_of(const Work& work);
  void leave(const Work& work);

  const Pipeline pipeline_;
  std::map<std::pair<int64_t, int>, Slot> under_way_;  // by micro-batch and chunk
  std::map<int, std::set<Slot>> free_;                 // by chunk
  std::map<int, Slot> slots_;                          // by chunk: how many there are
  std::map<std::tuple<PipelineStep::Kind, Work::Pass, int, Slot>, Arena::Places> places_;
};

}  // namespace witan
