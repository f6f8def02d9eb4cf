// Verifies the layout at run time (--check-states): replicated tensors are bitwise equal, every expert is on the rank
// that the layout assigns, no two experts were initialized alike, and no update made all experts of a layer equal.
#pragma once

#include <string>
#include <vector>

#include "witan/model/unit.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"

namespace witan {

class StateCheck {
 public:
  // Parameters, groups and buffers must outlive it.
  StateCheck(std::vector<Parameter*> parameters, const Groups& groups, std::vector<Buffer*> buffers = {})
      : parameters_(std::move(parameters)), buffers_(std::move(buffers)), groups_(groups) {}

  // Each function is called by all ranks. If a check fails, throws CommError on all ranks of the axis; it names the
  // stage, the tensor, and the ranks that differ from the others. after_init() checks values, placement, and that no
  // two experts are equal. `units` makes values available; nullptr: they always are.
  void after_init(Stream& stream, UnitAccess* units = nullptr) const;
  void after_reduction(Stream& stream,
                       const std::vector<ParameterShard>& shards) const;  // gradients that this rank owns
  // values, placement and optimizer state
  void after_update(Stream& stream, const Optimizer& optimizer) const;
  // that a parameter's experts are not all equal after an update; `units` as in after_init()
  void experts_after_update(Stream& stream, UnitAccess* units = nullptr) const;

 private:
  void check_places(const char* stage) const;
  // The ranks that must agree: all replicas of a value, or those that own the same shard.
  enum class Among : uint8_t { replicas, shard_replicas };
  void check_identical(Stream& stream, const ParameterSpec& spec, const Tensor& tensor, Among among,
                       const std::string& what) const;
  void check_replicas(Stream& stream, const Layout::Placements& placements, const Axes& but, const Tensor& tensor,
                      const std::string& what) const;
  void check_buffers(Stream& stream, const std::string& stage) const;
  void check_copies(Stream& stream, const char* stage) const;
  void check_value(Stream& stream, const Parameter& parameter, const std::string& stage) const;
  std::vector<int64_t> hashes_of_experts(Stream& stream, const Parameter& parameter) const;
  void check_experts_differ(Stream& stream, const Parameter& parameter, const char* stage) const;

  std::vector<Parameter*> parameters_;
  std::vector<Buffer*> buffers_;
  const Groups& groups_;
};

}  // namespace witan
