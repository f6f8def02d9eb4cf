#include "witan/nn/mixer/whole_sequences.h"

#include <algorithm>

#include "witan/base/text.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/parameter.h"
#include "witan/ops/attention/attention.h"
#include "witan/ops/shape/shape.h"

namespace witan {

bool ranks_divide(const ExchangedHeads& of, int64_t tensor, int64_t context) {
  const int64_t heads = std::max<int64_t>(of.heads.second / tensor, 1),
                groups = std::max<int64_t>(of.groups.second / tensor, 1);
  return heads % context == 0 && (groups % context == 0 || context % groups == 0);
}

std::string refusal_of_heads(const ExchangedHeads& of, int64_t tensor, int64_t context) {
  if (ranks_divide(of, tensor, context)) return "";
  return cat("each rank computes an equal share of the heads of ", of.layers,
             ", and of their groups or one of them, which ", of.heads.first, " = ", of.heads.second, " and ",
             of.groups.first, " = ", of.groups.second,
             tensor > 1 ? cat(" over tensor_model_parallel_size = ", tensor) : "", " do not allow; change these, or ");
}

Tensor WholeSequences::sequence_ids(Stream& stream, const Positions& where) const {
  if (where.hints.one_sequence_per_row) return {};
  return group_ == nullptr ? where.sequence_ids : whole_sequence_ids(stream, where, *group_);
}

Var WholeSequences::gather(Tape& tape, const Var& x, const HeadSections& sections) const {
  return group_ == nullptr ? x : ops::gather_sequence(tape, x, sections, *group_);
}

std::vector<Var> WholeSequences::gather(Tape& tape, const std::vector<Var>& numbers) const {
  if (group_ == nullptr) return numbers;
  std::vector<Var> heads;
  for (const Var& x : numbers) heads.push_back(ops::reshape(tape, x, {x.size(0), x.size(1), x.size(2), 1}));
  std::vector<Var> whole = ops::gather_sequence(tape, heads, *group_);
  for (Var& x : whole) x = ops::reshape(tape, x, {x.size(0), x.size(1), x.size(2)});
  return whole;
}

Var WholeSequences::scatter(Tape& tape, const Var& y, int64_t own_heads) const {
  if (group_ == nullptr) return y;
  const Var heads = ops::reshape(tape, y, {y.size(0), y.size(1), own_heads, y.size(2) / own_heads});
  const Var own = ops::scatter_sequence(tape, heads, *group_);
  return ops::reshape(tape, own, {own.size(0), own.size(1), own.size(2) * own.size(3)});
}

Var WholeSequences::own_rows(Tape& tape, Parameter& parameter, int64_t heads) const {
  const Var all = tape.parameter(parameter);
  if (group_ == nullptr) return all;
  const int64_t parts = std::min(heads, ranks());
  return ops::take_rows(tape, all, parts, group_->rank() * parts / ranks());
}

}  // namespace witan
