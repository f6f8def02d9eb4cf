#include "witan/parallel/global_norm.h"

namespace witan {

GlobalNorm::GlobalNorm(Stream& stream, const Ownership& ownership, const Groups& groups)
    : ownership_(ownership),
      families_(families_of(groups)),
      gradients_(stream, table_words(), MemoryTag::workspace),
      values_(stream, table_words(), MemoryTag::workspace) {
  sums_ = stream.empty({rows_, 2}, DType::f64, MemoryTag::workspace);
  order_ = stream.empty({rows_}, DType::i64, MemoryTag::workspace);
  total_ = stream.empty({2}, DType::f64, MemoryTag::workspace);
  stream.write(order_, summation_order().data());
}

// What is whole but for its owners, what the tensor axis cuts, and experts.
std::vector<GlobalNorm::Family> GlobalNorm::families_of(const Groups& groups) {
  const int cuts = groups.of(Axis::tensor).size();
  std::vector<Family> families = {
      {groups.of(Axis::shard), 1},
      {groups.over({Axis::shard, Axis::tensor}), cuts},
      {groups.over({Axis::expert_shard, Axis::expert, Axis::expert_tensor}),
       groups.of(Axis::expert).size() * groups.of(Axis::expert_tensor).size()},
  };
  for (size_t i = 0; i < ownership_.parameters().size(); ++i) {
    const ParameterSpec& spec = ownership_.parameters()[i]->spec();
    families[spec.expert ? 2 : spec.cut.any() && cuts > 1 ? 1 : 0].parameters.push_back(i);
  }
  for (Family& family : families) {
    for (int rank = 0; rank < family.group.size(); ++rank) {
      family.begin.push_back(rows_);
      for (const size_t i : family.parameters) rows_ += rows_of(i, rank / family.parts);
      family.rows.push_back(rows_ - family.begin.back());
    }
  }
  return families;
}

// Gradients have as many items as values.
int64_t GlobalNorm::table_words() const {
  return static_cast<int64_t>(items_of(Of::values).size()) * kernels::kSquareSumsColumns;
}

int64_t GlobalNorm::rows_of(size_t parameter, int owner) const {
  const Parameter& of = *ownership_.parameters()[parameter];
  const Ownership::Range range = ownership_.range(parameter, owner);
  return chunks_before(of, range.first + range.elements) - chunks_before(of, range.first);
}

// Parameters as the model has them, their parts by the rank that holds them, chunks.
std::vector<int64_t> GlobalNorm::summation_order() const {
  std::vector<std::vector<int64_t>> of_parameter(ownership_.parameters().size());
  for (const Family& family : families_) {
    std::vector<int64_t> next = family.begin;  // the next row of every rank
    for (const size_t i : family.parameters)
      for (int part = 0; part < family.parts; ++part)
        for (int owner = 0; owner < ownership_.owners(ownership_.parameters()[i]->spec().expert); ++owner) {
          int64_t& row = next[static_cast<size_t>(owner * family.parts + part)];
          for (int64_t count = rows_of(i, owner); count > 0; --count) of_parameter[i].push_back(row++);
        }
  }
  std::vector<int64_t> order;
  for (const std::vector<int64_t>& rows : of_parameter) order.insert(order.end(), rows.begin(), rows.end());
  return order;
}

// Of what this rank owns.
std::vector<kernels::SquareSumsItem> GlobalNorm::items_of(Of what) const {
  std::vector<kernels::SquareSumsItem> items;
  for (const Family& family : families_) {
    const int rank = family.group.rank(), owner = rank / family.parts;
    int64_t row = family.begin[static_cast<size_t>(rank)];
    for (const size_t i : family.parameters) {
      Parameter& parameter = *ownership_.parameters()[i];
      const auto [first, elements] = ownership_.range(i, owner);
      const Tensor& tensor = what == Of::gradients ? parameter.gradient() : parameter.value();
      add_square_sums(items, parameter, tensor, first, elements, row);
      row += rows_of(i, owner);
    }
  }
  return items;
}

const Tensor& GlobalNorm::compute(Stream& stream, Of what) {
  const std::vector<kernels::SquareSumsItem> items = items_of(what);
  kernels::DeviceTable& table = what == Of::gradients ? gradients_ : values_;
  kernels::square_sums_all(stream, sums_, items, table.holding(stream, kernels::square_sums_table(items)));
  for (const Family& family : families_) {
    std::vector<OwnedPiece> pieces;
    for (int rank = 0; rank < family.group.size(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      if (family.rows[r] > 0) pieces.push_back({sums_.narrow(0, family.begin[r], family.rows[r]), rank});
    }
    if (!pieces.empty()) family.group.gather_pieces(stream, pieces);
  }
  kernels::total_sums(stream, total_, sums_, order_);
  return total_;
}

}  // namespace witan
