// Parameter groups: several optimizers, or several settings of one, in a model.
//
// [optimizer] updates all parameters. Tables [[optimizer.groups]] select parameters by name or kind and override
// settings for them; what a table does not set it inherits from [optimizer].
//
// An optimizer of inner matrices (OptimizerTraits::of_inner_matrices) that [optimizer] names, for itself or for tables
// that inherit it, updates matrices and experts; AdamW updates the other kinds, with the same settings, as a group of
// its own. A table that names such an optimizer itself gives it all that it selects.
#pragma once

#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/config.h"

namespace witan {

// How the data-parallel ranks that share an optimizer's work divide it (parallel/sharding/shard_plan.h).
enum class ShardBy : uint8_t {
  elements,  // evenly, anywhere between two chunks of elements
  matrices,  // by whole matrices, each of which one rank updates; an expert is a matrix, a vector is one too
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
  // The same for what only asks for names, types and limits.
  static Fields columns();
};

struct ParamGroup {
  std::string label;                 // "kind = norms, match = *.weight"; of [optimizer] itself "all others"
  std::vector<std::string> match;    // globs, of which one fits; none: any
  std::vector<ParameterKind> kinds;  // none: any
  OptimizerSettings settings;        // with what it inherits
  ShardBy shard_by = ShardBy::elements;
  int table = 0;  // of [[optimizer.groups]], from 1 on; 0: of [optimizer]

  bool takes(const ParameterSpec& spec) const;
  double weight_decay(const ParameterSpec& spec) const {
    return spec.weight_decay || settings.decay_norms_and_biases ? settings.weight_decay : 0;
  }
};

class ParamGroups {
 public:
  // Throws ConfigError, which names the group, for settings that do not go together.
  explicit ParamGroups(const OptimizerConfig& given);

  // The first is [optimizer] itself, which takes what no other does; then the groups in their order, last of them what
  // [optimizer] leaves to AdamW.
  const std::vector<ParamGroup>& all() const { return groups_; }
  size_t size() const { return groups_.size(); }
  // The index of the group that takes the parameter.
  size_t index_of(const ParameterSpec& spec) const;
  const ParamGroup& of(const ParameterSpec& spec) const { return groups_[index_of(spec)]; }

  // Of every group at this position of the schedule (lr_schedule.h).
  std::vector<double> learning_rates(int64_t length, int64_t position) const;
  // What every group's weight decay is multiplied by there.
  double weight_decay_share(int64_t length, int64_t position) const;

 private:
  OptimizerConfig config_;
  std::vector<ParamGroup> groups_;
};

}  // namespace witan
