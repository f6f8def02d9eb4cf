#include "witan/planner/memory/memory_repetition.h"

#include <utility>

#include "witan/base/hash.h"

namespace witan {
namespace {

// to += times cost
void add_to(Cost& to, const Cost& cost, double times) {
  to += scaled(cost, times);
}
void add_to(double& to, double sent, double times) {
  to += times * sent;
}
template <class Sums>
void add_to(Sums& to, const Sums& sums, double times) {
  for (const auto& [key, sum] : sums) add_to(to[key], sum, times);
}

}  // namespace

void RankCosts::add(const RankCosts& other, double times) {
  add_to(kernels, other.kernels, times);
  add_to(sent, other.sent, times);
  add_to(calls, other.calls, times);
}

void MemoryRepetition::begin() {
  marks_.clear();
  latest_.clear();
  apart_ = agreed_ = 0;
  before_ = stream_.arena().records();
}

// A block's place may depend on the blocks that outlived the previous pass (Arena::Pool), so memory must match at
// every mark of a period, not only at its ends.
int64_t MemoryRepetition::period(int64_t micro_batch) {
  const std::vector<int64_t> layout = stream_.arena().layout(before_);
  const size_t now = marks_.size();
  marks_.push_back({micro_batch, hash_hex(layout.data(), layout.size() * sizeof(int64_t))});
  const std::string& memory = marks_.back().memory;
  const auto [latest, fresh] = latest_.try_emplace(memory, now);
  const size_t nearest = std::exchange(latest->second, now);
  if (apart_ > 0 && marks_[now - apart_].memory == memory) {
    if (++agreed_ < apart_) return 0;
    RankCosts costs = costs_of_what_ran();
    costs.add(costs_, -1);  // subtracted before scaling, so that integers stay exact
    costs_ = std::move(costs);
    return micro_batch - marks_[now - apart_].micro_batch;
  }
  agreed_ = 0;
  apart_ = fresh ? 0 : now - nearest;
  if (apart_ > 0) costs_ = costs_of_what_ran();
  return 0;
}

void MemoryRepetition::leave_out(int64_t micro_batches, int64_t period) {
  micro_batches_left_out_ += micro_batches;
  if (period == 0)
    found_all_ = false;
  else
    left_out_.add(costs_, static_cast<double>(micro_batches) / static_cast<double>(period));
}

RankCosts MemoryRepetition::costs_of_what_ran() const {
  RankCosts costs{stream_.costs(), {}, calls_};
  for (const Group* group : groups_.all())
    if (group->size() > 1 && !group->sent().empty()) costs.sent[group->name()] = group->sent();
  return costs;
}

RankCosts MemoryRepetition::costs() const {
  RankCosts costs = costs_of_what_ran();
  costs.add(left_out_, 1);
  return costs;
}

}  // namespace witan
