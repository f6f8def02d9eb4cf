#include "witan/parallel/global_norm.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace witan {

namespace {

Axes with_tensor(Axes axes) {
  axes.push_back(Axis::tensor);
  return axes;
}

}  // namespace

std::vector<NormRows> norm_rows(const ShardPlan& shard_plan, const Layout& layout) {
  const bool cuts = layout.mesh().size(Axis::tensor) > 1;
  std::vector<NormRows> all;
  for (size_t i = 0; i < shard_plan.parameters().size(); ++i) {
    const Parameter& parameter = *shard_plan.parameters()[i];
    const ParameterSpec& spec = parameter.spec();
    const NormFamily dense = spec.tensor_split.any() && cuts ? NormFamily::tensor_split : NormFamily::whole;
    NormRows& rows = all.emplace_back(
        NormRows{spec.expert ? NormFamily::experts : dense, spec.chunk, {}, spec.frozen, spec.in_codes(), spec.unit});
    for (int owner = 0; owner < shard_plan.sharding_ranks(spec.expert); ++owner) {
      const auto [first, elements] = shard_plan.most_of_range(i, owner);
      const int64_t count = chunks_before(parameter, first + elements) - chunks_before(parameter, first);
      rows.by_owner.push_back(spec.copy ? 0 : count);
    }
  }
  return all;
}

GlobalNorm::GlobalNorm(Stream& stream, const ShardPlan& shard_plan, const Groups& groups,
                       std::vector<std::vector<NormRows>> stages)
    : shard_plan_(shard_plan),
      families_{{{groups.over(groups.layout().sharding_axes(false)), 1},
                 {groups.over(with_tensor(groups.layout().sharding_axes(false))), groups.of(Axis::tensor).size()},
                 {groups.over({Axis::expert_shard, Axis::expert, Axis::expert_tensor}),
                  groups.of(Axis::expert).size() * groups.of(Axis::expert_tensor).size()}}},
      pipeline_(groups.of(Axis::pipeline)),
      stages_(place(stages.empty() ? std::vector<std::vector<NormRows>>{norm_rows(shard_plan, groups.layout())}
                                   : std::move(stages))),
      gradients_(stream, table_words(Of::gradients), MemoryTag::workspace),
      values_(stream, table_words(Of::values), MemoryTag::workspace),
      blocks_(stream, std::ssize(items_of(Of::gradients, Of::values).blocks) * kernels::kAddBlocksColumns,
              MemoryTag::workspace) {
  const int64_t rows = stages_.back().end();
  sums_ = stream.zeros({rows, 2}, DType::f64, MemoryTag::workspace);  // rows that sum nothing stay zero
  all_in_order_ = summation_order(stream, Of::values, unit_rows_);
  const bool some_frozen = std::ranges::any_of(
      stages_, [](const Stage& stage) { return std::ranges::any_of(stage.parameters, &NormRows::frozen); });
  order_of_gradients_ = some_frozen ? summation_order(stream, Of::gradients, unit_rows_) : all_in_order_;
  total_ = stream.empty({2}, DType::f64, MemoryTag::workspace);
  unit_totals_ = stream.empty({std::ssize(unit_rows_), 2}, DType::f64, MemoryTag::workspace);
}

std::vector<GlobalNorm::Stage> GlobalNorm::place(std::vector<std::vector<NormRows>> stages) const {
  std::vector<Stage> placed;
  int64_t rows = 0;
  for (auto& parameters : stages) {
    Stage& stage = placed.emplace_back();
    stage.parameters = std::move(parameters);
    for (size_t family = 0; family < kNormFamilies; ++family) {
      const auto& [group, parts] = families_[family];
      for (int rank = 0; rank < group.size(); ++rank) {
        stage.begins[family].push_back(rows);
        for (const NormRows& parameter : stage.parameters)
          if (static_cast<size_t>(parameter.family) == family)
            rows += parameter.by_owner[static_cast<size_t>(rank / parts)];
      }
      stage.begins[family].push_back(rows);
    }
  }
  return placed;
}

// Gradients have the same shapes as values.
int64_t GlobalNorm::table_words(Of what) const {
  return std::ssize(items_of(what, Of::values).tensors) * kernels::kSquareSumsColumns;
}

void GlobalNorm::Order::add(int64_t first, int64_t more) {
  count += more;
  for (int64_t row = first; keeps && row < first + more; ++row) rows.push_back(row);
}

// Orders rows by parameter, through all stages in the model's order; then by the rank that holds the part; then by
// chunk of elements.
Tensor GlobalNorm::summation_order(Stream& stream, Of what, std::vector<UnitRows>& units) const {
  Order order{!stream.is_meta()};
  units.clear();
  std::vector<Stage> next = stages_;  // the next row of each rank
  int chunks = 0;
  for (const Stage& stage : stages_)
    for (const NormRows& parameter : stage.parameters) chunks = std::max(chunks, parameter.chunk + 1);
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      append_rows(what, chunk, stages_[stage], next[stage], order, units);
  const Tensor rows = stream.empty({order.count}, DType::i64, MemoryTag::workspace);
  stream.write(rows, order.rows.data());
  return rows;
}

void GlobalNorm::append_rows(Of what, int chunk, const Stage& stage, Stage& next, Order& order,
                             std::vector<UnitRows>& units) const {
  for (const NormRows& parameter : stage.parameters) {
    if (parameter.chunk != chunk) continue;
    const int64_t begin = order.count;
    const auto family = static_cast<size_t>(parameter.family), parts = static_cast<size_t>(families_[family].parts);
    for (size_t part = 0; part < parts; ++part)
      for (size_t owner = 0; owner < parameter.by_owner.size(); ++owner) {
        int64_t& row = next.begins[family][owner * parts + part];
        const int64_t count = parameter.by_owner[owner];
        if (what == Of::values ? !parameter.coded : !parameter.frozen) order.add(row, count);
        row += count;
      }
    const int64_t count = order.count - begin;
    if (count > 0 && !units.empty() && units.back().unit == parameter.unit)
      units.back().count += count;
    else if (count > 0)
      units.push_back({parameter.unit, begin, count});
  }
}

// Lists the tensors that this rank owns, of trainable parameters or of all.
GlobalNorm::Items GlobalNorm::items_of(Of what, Of tensors) const {
  Items items;
  for (size_t family = 0; family < kNormFamilies; ++family) {
    const int rank = families_[family].group.rank(), owner = rank / families_[family].parts;
    int64_t row = own().begins[family][static_cast<size_t>(rank)];
    for (size_t i = 0; i < shard_plan_.parameters().size(); ++i) {
      Parameter& parameter = *shard_plan_.parameters()[i];
      if (static_cast<size_t>(own().parameters[i].family) != family || parameter.spec().copy) continue;
      const bool summed = what == Of::values ? !parameter.in_codes() : !parameter.spec().frozen;
      const auto [first, elements] = shard_plan_.range(i, owner);
      if (const Tensor blocks = parameter.gradient_block_sums(); what == Of::gradients && blocks.defined()) {
        assert(elements == parameter.elements());
        if (elements > 0) items.blocks.push_back({blocks, chunks_before(parameter, elements) / blocks.size(0), row});
      } else if (summed && elements > 0) {
        add_square_sums(items.tensors, parameter,
                        tensors == Of::gradients ? parameter.gradient_shard(first, elements)
                                                 : parameter.value_shard(first, elements),
                        first, row);
      }
      row += own().parameters[i].by_owner[static_cast<size_t>(owner)];
    }
  }
  return items;
}

// Gathers the sums of the ranks that shard each family in this stage, then those of the stages.
void GlobalNorm::gather_sums(Stream& stream) const {
  const auto gather = [&](Group& group, const std::vector<int64_t>& begins) {
    std::vector<OwnedTensor> pieces;
    for (int rank = 0; rank < group.size(); ++rank)
      if (const auto [begin, rows] = part_of(begins, rank); rows > 0)
        pieces.push_back({sums_.narrow(0, begin, rows), rank});
    if (!pieces.empty()) group.all_gather_uneven(stream, pieces);
  };
  for (size_t family = 0; family < kNormFamilies; ++family) gather(families_[family].group, own().begins[family]);
  std::vector<int64_t> begins = {0};
  for (const Stage& stage : stages_) begins.push_back(stage.end());
  gather(pipeline_, begins);
}

const Tensor& GlobalNorm::compute(Stream& stream, Of what) {
  const auto [tensors, blocks] = items_of(what, what);
  kernels::DeviceTable& table = what == Of::gradients ? gradients_ : values_;
  if (!tensors.empty())
    kernels::square_sums_all(stream, sums_, tensors, table.holding(stream, kernels::square_sums_table(tensors)));
  if (!blocks.empty())
    kernels::add_blocks_all(stream, sums_, blocks, blocks_.holding(stream, kernels::add_blocks_table(blocks)));
  gather_sums(stream);
  kernels::total_sums(stream, total_, sums_, what == Of::gradients ? order_of_gradients_ : all_in_order_);
  return total_;
}

std::vector<double> GlobalNorm::square_sums_of_units(Stream& stream) const {
  for (size_t i = 0; i < unit_rows_.size(); ++i)
    kernels::total_sums(stream, unit_totals_.narrow(0, static_cast<int64_t>(i), 1).reshape({2}), sums_,
                        order_of_gradients_.narrow(0, unit_rows_[i].begin, unit_rows_[i].count));
  std::vector<double> totals(2 * unit_rows_.size());
  stream.read(totals.data(), unit_totals_);
  std::vector<double> sums;
  for (size_t i = 0; i < unit_rows_.size(); ++i) {
    const auto unit = static_cast<size_t>(unit_rows_[i].unit);
    if (sums.size() <= unit) sums.resize(unit + 1);
    sums[unit] += totals[2 * i];
  }
  return sums;
}

}  // namespace witan
