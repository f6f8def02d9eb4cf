#include "witan/train/trace/times.h"

#include <algorithm>

namespace witan {

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  batch += other.batch;
  forward += other.forward;
  backward += other.backward;
  reduction += other.reduction;
  forward_backward += other.forward_backward;
  clip += other.clip;
  update += other.update;
  optimizer += other.optimizer;
  return *this;
}

NamedSeconds named(const StepTimes& times, int64_t level) {
  NamedSeconds all;
  if (level >= 1) all.emplace_back("forward-backward", times.forward_backward);
  if (level >= 2) {
    all.emplace_back("forward-compute", times.forward);
    all.emplace_back("backward-compute", times.backward);
    all.emplace_back("batch-generator", times.batch);
  }
  if (level >= 1) {
    all.emplace_back("all-grads-sync", times.reduction);
    all.emplace_back("optimizer-clip-main-grad", times.clip);
    all.emplace_back("optimizer-inner-step", times.update);
    all.emplace_back("optimizer", times.optimizer);
  }
  return all;
}

std::vector<megatron_log::RankTimes> gather_times(Stream& stream, Group& world, const NamedSeconds& own,
                                                  int64_t iterations) {
  std::vector<megatron_log::RankTimes> times;
  if (own.empty()) return times;
  const auto count = static_cast<int64_t>(own.size());
  const Tensor all = stream.empty({world.size() * count}, DType::f64, MemoryTag::communication);
  const Tensor part = all.narrow(0, world.rank() * count, count);
  std::vector<double> seconds(own.size());
  std::ranges::transform(own, seconds.begin(), &NamedSeconds::value_type::second);
  stream.write(part, seconds.data());
  world.all_gather(stream, all, part);
  if (stream.is_meta()) return times;
  seconds.resize(static_cast<size_t>(all.elements()));
  stream.read(seconds.data(), all);
  for (size_t i = 0; i < own.size(); ++i) {
    megatron_log::RankTimes& time = times.emplace_back();
    time.name = own[i].first;
    time.min_ms = time.max_ms = seconds[i];
    for (size_t j = i; j < seconds.size(); j += own.size()) {
      time.min_ms = std::min(time.min_ms, seconds[j]);
      time.max_ms = std::max(time.max_ms, seconds[j]);
    }
    time.min_ms *= 1e3 / static_cast<double>(iterations);
    time.max_ms *= 1e3 / static_cast<double>(iterations);
  }
  return times;
}

}  // namespace witan
