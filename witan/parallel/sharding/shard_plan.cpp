#include "witan/parallel/sharding/shard_plan.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

// The boundary between two chunks nearest to element `at` of the largest flat local part.
int64_t nearest_cut(const Parameter& parameter, int64_t at) {
  const Shape& local = parameter.shape();
  const int64_t piece = parameter.spec().expert ? parameter.elements() / local[0] : parameter.most_elements();
  const int64_t piece_begin = at / piece * piece;
  const int64_t before = piece_begin + (at - piece_begin) / kernels::kChunkElements * kernels::kChunkElements;
  const int64_t after = std::min(before + kernels::kChunkElements, piece_begin + piece);
  return at - before <= after - at ? before : after;
}

// Plans a buffer with these parameters side by side.
void cut_at_chunks(BucketPlan& plan, const std::vector<const Parameter*>& parameters, int owners) {
  int64_t total = 0, most = 0;
  for (const Parameter* parameter : parameters) {
    total += parameter->elements();
    most += parameter->most_elements();
  }
  plan.begins = plan.most = {0};
  int64_t begin = 0, most_begin = 0;  // where the parameter begins
  auto parameter = parameters.begin();
  for (int owner = 1; owner < owners; ++owner) {
    const int64_t even = most / owners * owner + most % owners * owner / owners;
    for (; parameter != parameters.end() && most_begin + (*parameter)->most_elements() <= even; ++parameter) {
      begin += (*parameter)->elements();
      most_begin += (*parameter)->most_elements();
    }
    const int64_t within = parameter == parameters.end() ? 0 : nearest_cut(**parameter, even - most_begin);
    plan.begins.push_back(parameter == parameters.end() ? total : begin + std::min(within, (*parameter)->elements()));
    plan.most.push_back(most_begin + within);
  }
  plan.begins.push_back(total);
  plan.most.push_back(most);
}

// Plans a buffer with these parameters side by side, ordered by owner.
void cut_at_matrices(BucketPlan& plan, const std::vector<Parameter*>& parameters,
                     const std::vector<std::vector<int>>& matrix_owners, int owners) {
  int64_t at = 0, most_at = 0;
  const auto end_before = [&](int owner) {
    while (static_cast<int>(plan.begins.size()) <= owner) {
      plan.begins.push_back(at);
      plan.most.push_back(most_at);
    }
  };
  for (const size_t i : plan.parameters) {
    const auto matrices = static_cast<int64_t>(matrix_owners[i].size());
    for (const int owner : matrix_owners[i]) {
      end_before(owner);
      at += parameters[i]->elements() / matrices;
      most_at += parameters[i]->most_elements() / matrices;
    }
  }
  end_before(owners);
}

// Parameters of one kind that are reduced over the same axes at the same time and sharded alike.
struct Family {
  bool experts;
  Axes axes;
  int chunk;         // chunk of layers
  bool tied;         // BucketPlan::tied
  bool by_matrices;  // false: by elements
  bool frozen;
  std::vector<size_t> parameters = {};
  std::vector<int64_t> elements = {};

  bool is_like(const Family& other) const {
    return experts == other.experts && axes == other.axes && chunk == other.chunk && tied == other.tied &&
           by_matrices == other.by_matrices && frozen == other.frozen;
  }
};

std::vector<Family> families_of(const std::vector<Parameter*>& parameters, const Layout& layout,
                                const std::vector<std::vector<int>>& matrix_owners) {
  std::vector<Family> families;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i]->spec();
    const Family alike{spec.expert,
                       layout.gradient_axes(spec),
                       spec.chunk,
                       spec.tied && layout.separates_head_gradient(),
                       !matrix_owners[i].empty(),
                       spec.frozen};
    auto family = std::ranges::find_if(families, [&](const Family& one) { return one.is_like(alike); });
    if (family == families.end()) family = families.insert(family, alike);
    family->parameters.push_back(i);
    family->elements.push_back(parameters[i]->most_elements());
  }
  return families;
}

}  // namespace

std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements) {
  std::vector<std::vector<size_t>> buckets;
  int64_t held =
      bucket_elements;  // elements of the last bucket; initially closed, so that the first parameter opens one
  for (size_t i = elements.size(); i-- > 0;) {
    if (held >= bucket_elements) {
      buckets.emplace_back();
      held = 0;
    }
    buckets.back().push_back(i);
    held += elements[i];
  }
  return buckets;
}

std::vector<std::vector<size_t>> plan_units(const std::vector<Parameter*>& parameters) {
  std::vector<std::vector<size_t>> units;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i == 0 || parameters[i]->spec().unit != parameters[i - 1]->spec().unit) units.emplace_back();
    units.back().push_back(i);
  }
  return units;
}

namespace {

// Orders the parameters of each of the family's buckets as in the model: what is adjacent there is adjacent in the
// bucket and can be written at once.
std::vector<std::vector<size_t>> members_of(const Family& family, const std::vector<Parameter*>& parameters,
                                            const Layout& layout, int64_t bucket_elements) {
  std::vector<std::vector<size_t>> members;
  if (family.experts && family.by_matrices) {
    for (const size_t stack : family.parameters) members.push_back({stack});
    return members;
  }
  if (layout.sharding() >= Sharding::gradients) {
    for (const std::vector<size_t>& unit : plan_units(parameters)) {
      std::vector<size_t> both;
      std::ranges::set_intersection(unit, family.parameters, std::back_inserter(both));
      if (!both.empty()) members.push_back(std::move(both));
    }
    return members;
  }
  for (const std::vector<size_t>& bucket : plan_buckets(family.elements, bucket_elements)) {
    members.emplace_back();
    for (const size_t member : bucket | std::views::reverse) members.back().push_back(family.parameters[member]);
  }
  return members;
}

}  // namespace

std::vector<BucketPlan> plan_gradients(const std::vector<Parameter*>& parameters, const Layout& layout,
                                       int64_t bucket_elements, const ShardingPolicy& policy) {
  const std::vector<std::vector<int>> owners = matrix_owners(parameters, layout, policy);
  std::vector<BucketPlan> plans;
  for (const Family& family : families_of(parameters, layout, owners)) {
    for (const std::vector<size_t>& members : members_of(family, parameters, layout, bucket_elements)) {
      BucketPlan& plan = plans.emplace_back();
      plan.experts = family.experts;
      plan.axes = family.axes;
      plan.tied = family.tied;
      plan.frozen = family.frozen;
      plan.parameters = members;
      if (family.by_matrices) {
        std::ranges::stable_sort(plan.parameters, {}, [&](size_t i) { return owners[i].front(); });
        cut_at_matrices(plan, parameters, owners, layout.sharding_ranks(family.experts));
        continue;
      }
      std::vector<const Parameter*> held;
      for (const size_t member : members) held.push_back(parameters[member]);
      cut_at_chunks(plan, held, layout.sharding_ranks(family.experts));
    }
  }
  std::ranges::sort(plans, std::greater(), [](const BucketPlan& plan) { return plan.first(); });
  return plans;
}

size_t BucketPlan::first() const {
  return std::ranges::min(parameters);
}

ShardPlan::ShardPlan(const std::vector<Parameter*>& parameters, const Layout& layout, int rank, int64_t bucket_elements,
                     const ShardingPolicy& policy)
    : parameters_(parameters),
      dense_ranks_(layout.sharding_ranks(false)),
      dense_rank_(layout.sharding_rank(false, rank)),
      expert_ranks_(layout.sharding_ranks(true)),
      expert_rank_(layout.sharding_rank(true, rank)),
      ranges_(parameters.size()),
      most_(parameters.size()) {
  // The owners' ranges of a parameter at [begin, begin + elements) of a buffer.
  const auto ranges = [](const std::vector<int64_t>& begins, int64_t begin, int64_t elements) {
    std::vector<Range> of_owners;
    for (size_t owner = 0; owner + 1 < begins.size(); ++owner) {
      const int64_t first = std::clamp(begins[owner], begin, begin + elements),
                    last = std::clamp(begins[owner + 1], begin, begin + elements);
      of_owners.push_back({first - begin, last - first});
    }
    return of_owners;
  };
  for (const BucketPlan& plan : plan_gradients(parameters, layout, bucket_elements, policy)) {
    int64_t begin = 0, most_begin = 0;
    for (const size_t i : plan.parameters) {
      const int64_t elements = parameters[i]->elements(), most = parameters[i]->most_elements();
      ranges_[i] = ranges(plan.begins, begin, elements);
      most_[i] = ranges(plan.most, most_begin, most);
      begin += elements;
      most_begin += most;
    }
  }
}

std::vector<ParameterShard> ShardPlan::local_shards(const Groups* groups) const {
  std::vector<ParameterShard> shards;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSpec& spec = parameters_[i]->spec();
    const Range mine = range(i, sharding_rank(spec.expert));
    if (mine.elements == 0 || spec.frozen) continue;
    ParameterShard& shard = shards.emplace_back(ParameterShard{parameters_[i], mine.first, mine.elements});
    if (groups == nullptr || !spec.tensor_split.any()) continue;
    Group& pieces = groups->of(spec.expert ? Axis::expert_tensor : Axis::tensor);
    if (pieces.size() > 1) shard.pieces = &pieces;
  }
  return shards;
}

std::vector<ParameterShard> unsharded(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterShard> shards;
  for (Parameter* parameter : parameters) shards.push_back({parameter, 0, parameter->elements()});
  return shards;
}

}  // namespace witan
