#include "witan/convert/input_moments.h"

#include <algorithm>
#include <numeric>

#include "witan/kernels/gemm/gemm.h"

namespace witan {
namespace {

constexpr int64_t kRowsTogether = 1024;
constexpr int64_t kWorkspace = int64_t{64} << 20;  // of a product

int64_t matrices_of(const Parameter& parameter) {
  return parameter.shape().dims() == 3 ? parameter.shape()[0] : 1;
}

int64_t arena_bytes(const std::vector<const Parameter*>& parameters) {
  int64_t moments = 0, widest = 0;
  for (const Parameter* parameter : parameters) {
    moments += InputMoments::bytes_of(*parameter) + Arena::kAlignment;
    widest = std::max(widest, parameter->shape().last());
  }
  return moments + kRowsTogether * widest * int64_t{sizeof(float)} + kWorkspace;
}

}  // namespace

int64_t InputMoments::bytes_of(const Parameter& parameter) {
  const int64_t K = parameter.shape().last();
  return matrices_of(parameter) * K * K * int64_t{sizeof(float)};
}

InputMoments::InputMoments(const std::vector<const Parameter*>& parameters, ThreadPool& pool)
    : stream_({}, Arena::reserve(arena_bytes(parameters)), pool) {
  for (const Parameter* parameter : parameters) places_.emplace(parameter->value().raw(), parameter);
}

std::pair<InputMoments::Sums*, int64_t> InputMoments::find(const Tensor& w) {
  auto next = places_.upper_bound(w.raw());
  if (next == places_.begin()) return {};
  const Parameter& first = *std::prev(next)->second;
  const int64_t offset = w.raw() - std::prev(next)->first;
  if (offset >= first.value().bytes() || w.shape().last() != first.shape().last()) return {};
  std::shared_ptr<Sums>& sums = sums_[first.name()];
  if (!sums) {
    const int64_t E = matrices_of(first), K = first.shape().last();
    sums = std::make_shared<Sums>(
        Sums{stream_.zeros({E, K, K}, DType::f32), std::vector<int64_t>(static_cast<size_t>(E))});
  }
  // Matrices that lie below the first one are parts of the same product.
  for (; next != places_.end() && next->first < w.raw() + w.bytes(); ++next) sums_[next->second->name()] = sums;
  return {sums.get(), offset / (first.value().bytes() / matrices_of(first))};
}

void InputMoments::product(const Tensor& x, const Tensor& w) {
  const auto [sums, matrix] = find(w);
  if (sums == nullptr) return;
  std::vector<int64_t> rows(static_cast<size_t>(x.size(0)));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  add(*sums, matrix, x, rows);
}

void InputMoments::grouped_product(const Rows& rows, const RowGroups& groups, const Tensor& w) {
  const auto [sums, first] = find(w);
  if (sums == nullptr) return;
  for (int64_t e = 0; e < groups.experts(); ++e) {
    std::vector<int64_t> of_group(static_cast<size_t>(groups.count.data<int64_t>()[e]));
    std::iota(of_group.begin(), of_group.end(), groups.begin.data<int64_t>()[e]);
    if (rows.index.defined())
      for (int64_t& row : of_group) row = rows.index.data<int64_t>()[row] / rows.divisor;
    add(*sums, first + e, rows.x, of_group);
  }
}

void InputMoments::add(Sums& to, int64_t matrix, const Tensor& x, std::span<const int64_t> rows) {
  const int64_t K = x.size(1);
  const Tensor moments = to.moments.narrow(0, matrix, 1).reshape({K, K});
  to.inputs[static_cast<size_t>(matrix)] += std::ssize(rows);
  for (; !rows.empty(); rows = rows.subspan(static_cast<size_t>(std::min(kRowsTogether, std::ssize(rows))))) {
    const int64_t count = std::min(kRowsTogether, std::ssize(rows));
    const Tensor some = stream_.empty({count, K}, DType::f32);
    dispatch_floating(x.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const T* const row = x.data<T>() + rows[static_cast<size_t>(i)] * x.stride(0);
        std::transform(row, row + K, some.data<float>() + i * K, [](T value) { return static_cast<float>(value); });
      }
    });
    kernels::gemm(stream_, moments, Write::accumulate, some, kernels::Transpose::yes, some, kernels::Transpose::no);
  }
}

bool InputMoments::collects(const std::string& parameter) const {
  return std::ranges::any_of(places_, [&](const auto& place) { return place.second->name() == parameter; });
}

std::span<const float> InputMoments::of(const std::string& parameter, int64_t matrix) const {
  const auto found = sums_.find(parameter);
  if (found == sums_.end() || found->second->inputs[static_cast<size_t>(matrix)] == 0) return {};
  const auto size = static_cast<size_t>(found->second->moments.size(1) * found->second->moments.size(2));
  return found->second->moments.span<float>().subspan(static_cast<size_t>(matrix) * size, size);
}

}  // namespace witan
