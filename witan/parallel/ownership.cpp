#include "witan/parallel/ownership.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <string_view>

#include "witan/kernels/optimizer.h"

namespace witan {
namespace {

// The boundary between two chunks that is nearest to element `at` of the flat local part.
int64_t nearest_cut(const Parameter& parameter, int64_t at) {
  const Shape& local = parameter.shape();
  const int64_t piece = parameter.spec().expert ? parameter.elements() / local[0] : parameter.elements();
  const int64_t piece_begin = at / piece * piece;
  const int64_t before = piece_begin + (at - piece_begin) / kernels::kChunkElements * kernels::kChunkElements;
  const int64_t after = std::min(before + kernels::kChunkElements, piece_begin + piece);
  return at - before <= after - at ? before : after;
}

// [owners + 1] of a buffer that holds these parameters one after the other.
std::vector<int64_t> cut_at_chunks(const std::vector<const Parameter*>& parameters, int owners) {
  int64_t total = 0;
  for (const Parameter* parameter : parameters) total += parameter->elements();
  std::vector<int64_t> begins = {0};
  int64_t begin = 0;  // of the parameter
  auto parameter = parameters.begin();
  for (int owner = 1; owner < owners; ++owner) {
    const int64_t even = total / owners * owner + total % owners * owner / owners;
    while (parameter != parameters.end() && begin + (*parameter)->elements() <= even)
      begin += (*parameter++)->elements();
    begins.push_back(parameter == parameters.end() ? total : begin + nearest_cut(**parameter, even - begin));
  }
  begins.push_back(total);
  return begins;
}

// Parameters of one kind that are reduced over the same axes, at the same time.
struct Family {
  bool experts;
  Axes axes;
  int chunk;  // of layers
  bool tied;  // BucketPlan's
  std::vector<size_t> parameters = {};
  std::vector<int64_t> elements = {};

  bool is_like(const Family& other) const {
    return experts == other.experts && axes == other.axes && chunk == other.chunk && tied == other.tied;
  }
};

std::vector<Family> families_of(const std::vector<Parameter*>& parameters, const Layout& layout) {
  std::vector<Family> families;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i]->spec();
    const Family alike{spec.expert, layout.gradient_axes(spec), spec.chunk, spec.tied && layout.sums_heads_apart()};
    auto family = std::ranges::find_if(families, [&](const Family& one) { return one.is_like(alike); });
    if (family == families.end()) family = families.insert(family, alike);
    family->parameters.push_back(i);
    family->elements.push_back(parameters[i]->elements());
  }
  return families;
}

}  // namespace

std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements) {
  std::vector<std::vector<size_t>> buckets;
  int64_t held = bucket_elements;  // of the last bucket: closed, so the first parameter opens one
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
  constexpr std::string_view kBlocks = "layers.";
  const auto block_of = [&](const std::string& name) {
    return name.starts_with(kBlocks) ? name.substr(0, name.find('.', kBlocks.size())) : "";
  };
  std::vector<std::vector<size_t>> units;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i == 0 || block_of(parameters[i]->name()) != block_of(parameters[i - 1]->name())) units.emplace_back();
    units.back().push_back(i);
  }
  return units;
}

namespace {

// Of each of the family's buckets, in the model's order: what lies side by side there is side by side in the bucket,
// and can be written at once.
std::vector<std::vector<size_t>> members_of(const Family& family, const std::vector<Parameter*>& parameters,
                                            const Layout& layout, int64_t bucket_elements) {
  std::vector<std::vector<size_t>> members;
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
                                       int64_t bucket_elements) {
  std::vector<BucketPlan> plans;
  for (const Family& family : families_of(parameters, layout)) {
    for (const std::vector<size_t>& members : members_of(family, parameters, layout, bucket_elements)) {
      BucketPlan& plan = plans.emplace_back();
      plan.experts = family.experts;
      plan.axes = family.axes;
      plan.tied = family.tied;
      plan.parameters = members;
      std::vector<const Parameter*> held;
      for (const size_t member : members) held.push_back(parameters[member]);
      plan.begins = cut_at_chunks(held, layout.owners(family.experts));
    }
  }
  std::ranges::sort(plans, std::greater(), [](const BucketPlan& plan) { return plan.parameters.front(); });
  return plans;
}

Ownership::Ownership(const std::vector<Parameter*>& parameters, const Layout& layout, int rank, int64_t bucket_elements)
    : parameters_(parameters),
      dense_owners_(layout.owners(false)),
      dense_owner_(layout.owner(false, rank)),
      expert_owners_(layout.owners(true)),
      expert_owner_(layout.owner(true, rank)),
      ranges_(parameters.size()) {
  for (const BucketPlan& plan : plan_gradients(parameters, layout, bucket_elements)) {
    int64_t begin = 0;
    for (const size_t i : plan.parameters) {
      const int64_t end = begin + parameters[i]->elements();
      for (size_t owner = 0; owner + 1 < plan.begins.size(); ++owner) {
        const int64_t first = std::clamp(plan.begins[owner], begin, end),
                      last = std::clamp(plan.begins[owner + 1], begin, end);
        ranges_[i].push_back({first - begin, last - first});
      }
      begin = end;
    }
  }
}

std::vector<Owned> Ownership::owned() const {
  std::vector<Owned> owned;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Range mine = range(i, owner_of_rank(parameters_[i]->spec().expert));
    if (mine.elements > 0) owned.push_back({parameters_[i], mine.first, mine.elements});
  }
  return owned;
}

std::vector<Owned> own_all(const std::vector<Parameter*>& parameters) {
  std::vector<Owned> owned;
  for (Parameter* parameter : parameters) owned.push_back({parameter, 0, parameter->elements()});
  return owned;
}

}  // namespace witan
