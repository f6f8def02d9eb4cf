#include "witan/parallel/pass_places.h"

namespace witan {

Arena::Places* PassPlaces::of(const PipelineStep& step) {
  if (pipeline_.stages == 1 || step.kind == PipelineStep::Kind::send) return nullptr;
  const Slot slot = slot_of(step.work);
  const bool is_last = pipeline_.passes == Pipeline::Passes::forward || step.work.pass == Work::Pass::backward;
  if (is_last && step.kind == PipelineStep::Kind::compute) leave(step.work);
  return &places_[{step.kind, step.work.pass, step.work.chunk, slot}];
}

PassPlaces::Slot PassPlaces::slot_of(const Work& work) {
  const auto [found, begins] = under_way_.try_emplace({work.micro_batch, work.chunk}, 0);
  if (!begins) return found->second;
  std::set<Slot>& free = free_[work.chunk];
  if (free.empty()) free.insert(slots_[work.chunk]++);
  return found->second = free.extract(free.begin()).value();
}

void PassPlaces::leave(const Work& work) {
  free_[work.chunk].insert(under_way_.extract({work.micro_batch, work.chunk}).mapped());
}

}  // namespace witan
