#include "witan/parallel/state_check.h"

#include <algorithm>

#include "witan/base/hash.h"
#include "witan/comm/checks/fingerprint.h"
#include "witan/tensor/host.h"

namespace witan {

void StateCheck::after_init(Stream& stream, UnitAccess* units) const {
  check_places("init");
  check_copies(stream, "init");
  check_buffers(stream, "init");
  for (const Parameter* parameter : parameters_) {
    check_value(stream, *parameter, "init");
    if (!parameter->spec().expert || !parameter->spec().init.random()) continue;
    const UnitReading reading(units, parameter->spec().unit);
    check_experts_differ(stream, *parameter, "init");
  }
}

void StateCheck::check_value(Stream& stream, const Parameter& parameter, const std::string& stage) const {
  const bool sharded = groups_.layout().shards_values(parameter.spec().expert);
  for (const Tensor& kept : parameter.kept())
    check_identical(stream, parameter.spec(), kept, sharded ? Among::shard_replicas : Among::replicas,
                    stage + ": the value of " + parameter.name());
}

void StateCheck::after_reduction(Stream& stream, const std::vector<ParameterShard>& shards) const {
  for (const auto& [parameter, first, elements, pieces] : shards)
    check_identical(stream, parameter->spec(), parameter->gradient_shard(first, elements), Among::shard_replicas,
                    "reduction: the gradient of " + parameter->name());
}

void StateCheck::after_update(Stream& stream, const Optimizer& optimizer) const {
  check_places("the update");
  check_copies(stream, "the update");
  for (const Parameter* parameter : parameters_) check_value(stream, *parameter, "the update");
  check_buffers(stream, "the update");
  optimizer.visit([&](const OptimizerTensor& state) {
    const Tensor& own =
        state.remainder.defined() ? state.remainder : state.tensor;  // what the optimizer has beyond the value
    check_identical(stream, state.parameter, own, Among::shard_replicas, "the update: " + state.name);
  });
}

// Compares the copies of a tied embedding on the first and the last pipeline stage.
void StateCheck::check_copies(Stream& stream, const char* stage) const {
  for (const Parameter* parameter : parameters_)
    if (parameter->spec().tied && groups_.embedding().size() > 1)
      require<CommError>(ranks_that_differ(stream, groups_.embedding(), parameter->value_shard()).empty(),
                         "check_states after ", stage, ": ", parameter->name(),
                         " must be the same on the first and the last stage of the pipeline, but differs");
}

void StateCheck::check_places(const char* stage) const {
  for (const Parameter* parameter : parameters_) {
    const auto [region, shape, most] = groups_.layout().part(parameter->spec(), groups_.rank());
    require<CommError>(parameter->region() == region && parameter->shape() == shape, "check_states after ", stage,
                       ": rank ", groups_.rank(), " holds elements ", parameter->region(), " of ", parameter->name(),
                       ", but the layout assigns it ", region);
  }
}

void StateCheck::check_identical(Stream& stream, const ParameterSpec& spec, const Tensor& tensor, Among among,
                                 const std::string& what) const {
  const Axes owners = among == Among::shard_replicas ? groups_.layout().sharding_axes(spec.expert) : Axes{};
  check_replicas(stream, groups_.layout().placements(spec), owners, tensor, what);
}

void StateCheck::check_buffers(Stream& stream, const std::string& stage) const {
  for (const Buffer* buffer : buffers_)
    check_replicas(stream, groups_.layout().placements(buffer->spec()), {}, buffer->value(),
                   stage + ": the buffer " + buffer->name());
}

void StateCheck::check_replicas(Stream& stream, const Layout::Placements& placements, const Axes& but,
                                const Tensor& tensor, const std::string& what) const {
  for (const auto& [axis, placement] : placements) {
    if (placement.kind != Placement::Kind::replicate || std::ranges::find(but, axis) != but.end()) continue;
    const std::vector<int> world_ranks = groups_.layout().mesh().ranks(groups_.rank(), axis);
    std::string list;
    for (const int rank : ranks_that_differ(stream, groups_.of(axis), tensor))
      list += cat(list.empty() ? "" : ", ", world_ranks[static_cast<size_t>(rank)]);
    require<CommError>(list.empty(), "check_states after ", what, " must be the same on all ", world_ranks.size(),
                       " ranks of axis ", axis, ", but differs on rank(s) ", list);
  }
}

// Two experts may be equal: a run may begin with copies of experts that few tokens have changed differently so far.
void StateCheck::experts_after_update(Stream& stream, UnitAccess* units) const {
  for (const Parameter* parameter : parameters_) {
    if (!parameter->spec().expert || !parameter->spec().init.random() || parameter->frozen) continue;
    const UnitReading reading(units, parameter->spec().unit);
    const std::vector<int64_t> hashes = hashes_of_experts(stream, *parameter);
    const bool differ = hashes.size() < 2 || std::ranges::count(hashes, hashes.front()) < std::ssize(hashes);
    require<CommError>(differ, "check_states after the update: all ", hashes.size(), " experts of ", parameter->name(),
                       " are equal; they learn the same, and must begin with different values");
  }
}

// Hashes of all experts in order; empty on the meta device.
std::vector<int64_t> StateCheck::hashes_of_experts(Stream& stream, const Parameter& parameter) const {
  Group& group = groups_.of(Axis::expert);
  const Tensor& value = parameter.value();
  const int64_t held = value.size(0);
  const Tensor all = stream.empty({held * group.size()}, DType::i64, MemoryTag::communication);
  const Tensor mine = all.narrow(0, held * group.rank(), held);
  if (!stream.is_meta()) {
    stream.wait();
    std::vector<int64_t> own;
    for (int64_t expert = 0; expert < held; ++expert) {
      Hasher hasher;
      for_host_bytes(value.narrow(0, expert, 1),
                     [&](const std::byte* bytes, int64_t count) { hasher.update(bytes, static_cast<size_t>(count)); });
      own.push_back(static_cast<int64_t>(hasher.low64()));
    }
    stream.write(mine, own.data());
  }
  group.all_gather(stream, all, mine);
  if (stream.is_meta()) return {};
  std::vector<int64_t> hashes(static_cast<size_t>(held * group.size()));
  stream.read(hashes.data(), all);
  return hashes;
}

void StateCheck::check_experts_differ(Stream& stream, const Parameter& parameter, const char* stage) const {
  const std::vector<int64_t> hashes = hashes_of_experts(stream, parameter);
  for (auto one = hashes.begin(); one != hashes.end(); ++one) {
    const auto same = std::find(one + 1, hashes.end(), *one);
    require<CommError>(same == hashes.end(), "check_states after ", stage, ": experts ", one - hashes.begin(), " and ",
                       same - hashes.begin(), " of ", parameter.name(),
                       " are equal; each must be initialized with different random numbers, or they learn the same");
  }
}

}  // namespace witan
