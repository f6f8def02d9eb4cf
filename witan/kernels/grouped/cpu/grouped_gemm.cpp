#include "witan/kernels/grouped/cpu/grouped_gemm.h"

#include <cassert>
#include <cstring>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels::cpu {
namespace {

// to [rows, out] = from [rows, in] op(w[e]) for each group's rows.
void multiply_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                   Transpose transpose_w, const Tensor& workspace) {
  const auto begin = groups.begin.span<int64_t>(), count = groups.count.span<int64_t>();
  dispatch_floating(to.dtype(), [&]<class T>() {
    std::vector<Product<T, T>> products;
    for (size_t e = 0; e < count.size(); ++e) {
      assert(count[e] >= 0 && begin[e] >= 0 && begin[e] + count[e] <= to.size(0));
      products.push_back({.c = {to.data<T>() + begin[e] * to.stride(0), to.stride(0)},
                          .a = {from.data<T>() + begin[e] * from.stride(0), from.stride(0)},
                          .b = {w.data<T>() + static_cast<int64_t>(e) * w.stride(0), w.stride(1), transpose_w},
                          .M = count[e],
                          .N = to.size(1),
                          .K = from.size(1)});
    }
    multiply(stream, Write::overwrite, products, workspace);
  });
}

}  // namespace

void gather_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowIndex& rows,
                         const RowGroups& groups) {
  const int64_t* index = rows.index.data<int64_t>();
  const int64_t size = size_of(from.dtype()), bytes = from.size(1) * size;
  for_group_rows(stream, to, groups, [&](int64_t i) {
    std::memcpy(to.raw() + i * bytes, from.raw() + index[i] / rows.divisor * from.stride(0) * size,
                static_cast<size_t>(bytes));
  });
}

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const Tensor& workspace) {
  multiply_rows(stream, y, x, groups, w, Transpose::yes, workspace);
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const Tensor& workspace) {
  multiply_rows(stream, dx, dy, groups, w, Transpose::no, workspace);
}

void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const Tensor& workspace) {
  const auto begin = groups.begin.span<int64_t>(), count = groups.count.span<int64_t>();
  dispatch_product(x.dtype(), dw.dtype(), [&]<class S, class C>() {
    std::vector<Product<S, C>> products;
    for (size_t e = 0; e < count.size(); ++e) {
      assert(count[e] >= 0 && begin[e] >= 0 && begin[e] + count[e] <= x.size(0));
      products.push_back({.c = {dw.data<C>() + static_cast<int64_t>(e) * dw.stride(0), dw.stride(1)},
                          .a = {dy.data<S>() + begin[e] * dy.stride(0), dy.stride(0), Transpose::yes},
                          .b = {x.data<S>() + begin[e] * x.stride(0), x.stride(0)},
                          .M = dw.size(1),
                          .N = dw.size(2),
                          .K = count[e]});
    }
    multiply(stream, write, products, workspace);
  });
}

}  // namespace witan::kernels::cpu
