// Parameter groups: several optimizers, or several settings of one, for a model.
//
// [optimizer] updates all parameters. Tables [[optimizer.groups]] select parameters by name or kind and override
// settings for them; what a table does not set it inherits from [optimizer].
//
// If [optimizer] names an optimizer of inner matrices (OptimizerTraits::of_inner_matrices), it updates the matrices and
// experts, also those of tables that inherit it; AdamW updates the other kinds, with the same settings, as a separate
// group. If a table names such an optimizer itself, the optimizer updates all parameters that the table selects.
#pragma once

#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/config.h"

namespace witan {

// How data-parallel ranks divide an optimizer's work (parallel/sharding/shard_plan.h).
enum class ShardBy : uint8_t {
  elements,  // evenly, anywhere between two chunks of elements
  matrices,  // by whole matrices, each updated by one rank; experts and vectors count as matrices
};
std::string_view name_of(ShardBy shard_by);

// One table of [[optimizer.groups]].
struct ParamGroupConfig {
  std::string match;     // globs on the checkpoint name, with commas between them: "*.q_proj.*,head.*"; empty: any
  std::string kind;      // ParameterKinds' names, with commas between them; empty: any
  std::string shard_by;  // empty: what the optimizer needs
  double lr_mult = 1;    // multiplies lr and min_lr, set here or inherited
  OptimizerSettings settings;

  Fields fields();
  // The fields of a default table, for callers that need only names, types and limits.
  static Fields columns();
};

struct ParamGroup {
  std::string label;                 // "kind = norms, match = *.weight"; "all others" for [optimizer] itself
  std::vector<std::string> match;    // globs, of which one fits; none: any
  std::vector<ParameterKind> kinds;  // none: any
  OptimizerSettings settings;        // inherited ones included
  ShardBy shard_by = ShardBy::elements;
  int table = 0;  // number among [[optimizer.groups]], from 1 on; 0: [optimizer]

  bool takes(const ParameterSpec& spec) const;
  double weight_decay(const ParameterSpec& spec) const {
    return spec.weight_decay || settings.decay_norms_and_biases ? settings.weight_decay : 0;
  }
};

class ParamGroups {
 public:
  // Throws ConfigError, which names the group, for conflicting settings.
  explicit ParamGroups(const OptimizerConfig& given);

  // The first is [optimizer] itself, which takes all parameters that no other group takes; then the tables in their
  // order; last the parameters that [optimizer] leaves to AdamW.
  const std::vector<ParamGroup>& all() const { return groups_; }
  size_t size() const { return groups_.size(); }
  // The index of the group that takes the parameter.
  size_t index_of(const ParameterSpec& spec) const;
  const ParamGroup& of(const ParameterSpec& spec) const { return groups_[index_of(spec)]; }

  // Every group's learning rate at this position of the schedule (lr_schedule.h).
  std::vector<double> learning_rates(int64_t length, int64_t position) const;
  // The factor of every group's weight decay at this position.
  double weight_decay_share(int64_t length, int64_t position) const;

 private:
  OptimizerConfig config_;
  std::vector<ParamGroup> groups_;
};

}  // namespace witan
