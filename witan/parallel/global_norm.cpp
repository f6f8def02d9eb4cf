#include "witan/parallel/global_norm.h"

namespace witan {

GlobalNorm::GlobalNorm(Stream& stream, const Ownership& ownership, const Groups& groups)
    : ownership_(ownership),
      dense_(family_of(false, groups.of(Axis::shard), 1, rows_)),
      experts_(family_of(true, groups.over({Axis::expert_shard, Axis::expert}), groups.of(Axis::expert).size(), rows_)),
      gradients_(stream, table_words(), MemoryTag::workspace),
      values_(stream, table_words(), MemoryTag::workspace) {
  sums_ = stream.empty({rows_, 2}, DType::f64, MemoryTag::workspace);
  order_ = stream.empty({rows_}, DType::i64, MemoryTag::workspace);
  total_ = stream.empty({2}, DType::f64, MemoryTag::workspace);
  stream.write(order_, summation_order().data());
}

// Their rows begin at `rows`, which grows by them.
GlobalNorm::Family GlobalNorm::family_of(bool experts, Group& group, int expert_ranks, int64_t& rows) const {
  Family family{experts, group, expert_ranks, {}, {}};
  for (int rank = 0; rank < group.size(); ++rank) {
    family.begin.push_back(rows);
    for (size_t i = 0; i < ownership_.parameters().size(); ++i)
      if (ownership_.parameters()[i]->spec().expert == experts) rows += rows_of(i, rank / expert_ranks);
    family.rows.push_back(rows - family.begin.back());
  }
  return family;
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

// Parameters as the model has them, experts by the rank that holds them, chunks.
std::vector<int64_t> GlobalNorm::summation_order() const {
  std::vector<int64_t> order, dense = dense_.begin, experts = experts_.begin;  // the next row of every rank
  for (size_t i = 0; i < ownership_.parameters().size(); ++i) {
    const bool expert = ownership_.parameters()[i]->spec().expert;
    const Family& family = expert ? experts_ : dense_;
    std::vector<int64_t>& next = expert ? experts : dense;
    for (int expert_rank = 0; expert_rank < family.expert_ranks; ++expert_rank)
      for (int owner = 0; owner < ownership_.owners(expert); ++owner) {
        int64_t& row = next[static_cast<size_t>(owner * family.expert_ranks + expert_rank)];
        for (int64_t count = rows_of(i, owner); count > 0; --count) order.push_back(row++);
      }
  }
  return order;
}

// Of what this rank owns.
std::vector<kernels::SquareSumsItem> GlobalNorm::items_of(Of what) const {
  std::vector<kernels::SquareSumsItem> items;
  for (const Family* family : {&dense_, &experts_}) {
    const int rank = family->group.rank(), owner = rank / family->expert_ranks;
    int64_t row = family->begin[static_cast<size_t>(rank)];
    for (size_t i = 0; i < ownership_.parameters().size(); ++i) {
      Parameter& parameter = *ownership_.parameters()[i];
      if (parameter.spec().expert != family->experts) continue;
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
  for (const Family* family : {&dense_, &experts_}) {
    std::vector<OwnedPiece> pieces;
    for (int rank = 0; rank < family->group.size(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      if (family->rows[r] > 0) pieces.push_back({sums_.narrow(0, family->begin[r], family->rows[r]), rank});
    }
    if (!pieces.empty()) family->group.gather_pieces(stream, pieces);
  }
  kernels::total_sums(stream, total_, sums_, order_);
  return total_;
}

}  // namespace witan
