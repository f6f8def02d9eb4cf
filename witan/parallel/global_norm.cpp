#include "witan/parallel/global_norm.h"

namespace witan {
namespace {

// The rows of sums in the order of parameters; those of experts lie by rank, behind all others.
std::vector<int64_t> summation_order(const std::vector<Parameter*>& parameters, int64_t dense_chunks,
                                     int64_t expert_chunks, int expert_ranks) {
  std::vector<int64_t> order;
  int64_t dense = 0, expert = dense_chunks;
  for (const Parameter* parameter : parameters) {
    const int64_t count = chunks_of(*parameter);
    int64_t& begin = parameter->spec().expert ? expert : dense;
    for (int rank = 0; rank < (parameter->spec().expert ? expert_ranks : 1); ++rank)
      for (int64_t chunk = 0; chunk < count; ++chunk) order.push_back(begin + rank * expert_chunks + chunk);
    begin += count;
  }
  return order;
}

}  // namespace

GlobalNorm::GlobalNorm(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups)
    : expert_group_(groups.of(Axis::expert)),
      gradients_(stream, static_cast<int64_t>(parameters.size()) * kernels::kSquareSumsColumns, MemoryTag::workspace),
      values_(stream, static_cast<int64_t>(parameters.size()) * kernels::kSquareSumsColumns, MemoryTag::workspace) {
  for (Parameter* parameter : parameters) {
    const bool expert = parameter->spec().expert;
    (expert ? experts_ : dense_).push_back(parameter);
    (expert ? expert_chunks_ : dense_chunks_) += chunks_of(*parameter);
  }
  const int64_t rows = dense_chunks_ + expert_group_.size() * expert_chunks_;
  sums_ = stream.empty({rows, 2}, DType::f64, MemoryTag::workspace);
  order_ = stream.empty({rows}, DType::i64, MemoryTag::workspace);
  total_ = stream.empty({2}, DType::f64, MemoryTag::workspace);
  stream.write(order_, summation_order(parameters, dense_chunks_, expert_chunks_, expert_group_.size()).data());
}

std::vector<kernels::SquareSumsItem> GlobalNorm::items_of(Of what) const {
  std::vector<kernels::SquareSumsItem> items;
  const auto add = [&](const std::vector<Parameter*>& parameters, int64_t row) {
    for (Parameter* parameter : parameters) {
      items.push_back(
          square_sums_of(*parameter, what == Of::gradients ? parameter->gradient() : parameter->value(), row));
      row += chunks_of(*parameter);
    }
  };
  add(dense_, 0);
  add(experts_, dense_chunks_ + expert_group_.rank() * expert_chunks_);
  return items;
}

const Tensor& GlobalNorm::compute(Stream& stream, Of what) {
  const std::vector<kernels::SquareSumsItem> items = items_of(what);
  kernels::DeviceTable& table = what == Of::gradients ? gradients_ : values_;
  kernels::square_sums_all(stream, sums_, items, table.holding(stream, kernels::square_sums_table(items)));
  if (!experts_.empty()) {
    const Tensor gathered = sums_.narrow(0, dense_chunks_, expert_group_.size() * expert_chunks_);
    expert_group_.all_gather(stream, gathered,
                             gathered.narrow(0, expert_group_.rank() * expert_chunks_, expert_chunks_));
  }
  kernels::total_sums(stream, total_, sums_, order_);
  return total_;
}

}  // namespace witan
