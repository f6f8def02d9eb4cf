#include "witan/kernels/attention/heads.h"

#include <algorithm>

#include "witan/kernels/attention/cpu/rotate.h"
#include "witan/kernels/attention/rope.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

struct Sizes {
  int64_t tokens, queries, groups, hd;
  int64_t values;  // channels of all groups: G hd_v
  int64_t row() const { return (queries + groups) * hd + values; }
};

Sizes sizes_of(const Heads& heads, const Tensor& packed) {
  const int64_t hd = heads.q.shape().last(), tokens = packed.size(0);
  if (tokens == 0) return {0, 0, 0, hd, 0};
  return {tokens, heads.q.elements() / (tokens * hd), heads.k.elements() / (tokens * hd), hd,
          heads.v.elements() / tokens};
}

}  // namespace

void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args) {
  RopeArgs forward = args;
  forward.inverse = false;
  const int32_t* position = positions.data<int32_t>();
  dispatch_floating(table.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      fill_table(stream, table.data<A>(), positions.elements(), forward, [&](int64_t r) { return position[r]; });
  });
}

void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args) {
  const Sizes n = sizes_of(heads, packed);
  if (n.tokens == 0) return;
  dispatch_floating(packed.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(n.tokens, kTaskElements / n.row(), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* in = packed.data<T>() + t * n.row();
        const A* angles = args.dims > 0 ? table.data<A>() + t * args.dims : nullptr;
        for (const auto& [to, count] : {std::pair{&heads.q, n.queries}, std::pair{&heads.k, n.groups}})
          for (int64_t h = 0; h < count; ++h, in += n.hd)
            rotate_head(to->template data<T>() + (t * count + h) * n.hd, in, angles, n.hd, args, A(1));
        std::copy_n(in, n.values, heads.v.data<T>() + t * n.values);
      }
    });
  });
}

void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args) {
  const Sizes n = sizes_of(gradients, dpacked);
  if (n.tokens == 0) return;
  dispatch_floating(dpacked.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(n.tokens, kTaskElements / n.row(), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* out = dpacked.data<T>() + t * n.row();
        const A* angles = args.dims > 0 ? table.data<A>() + t * args.dims : nullptr;
        for (const auto& [from, count] : {std::pair{&gradients.q, n.queries}, std::pair{&gradients.k, n.groups}})
          for (int64_t h = 0; h < count; ++h, out += n.hd)
            rotate_head(out, from->template data<T>() + (t * count + h) * n.hd, angles, n.hd, args, A(-1));
        std::copy_n(gradients.v.data<T>() + t * n.values, n.values, out);
      }
    });
  });
}

void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  const int64_t tokens = positions.elements(), heads = x.size(2), hd = x.size(3);
  if (x.elements() == 0) return;
  const int32_t* position = positions.data<int32_t>();
  const int64_t highest = *std::max_element(position, position + tokens);
  // Sequences of a batch share positions, so the table has a row per position. If that takes more rows than there are
  // tokens (as for a single late position in decoding), it has a row per token instead.
  const bool by_position = highest < tokens;
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A* angles = table.data<A>();
    if (by_position)
      fill_table(stream, angles, highest + 1, args, [](int64_t r) { return r; });
    else
      fill_table(stream, angles, tokens, args, [&](int64_t r) { return position[r]; });
    stream.pool().for_ranges(tokens, kTaskElements / (heads * hd), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A* turn = angles + (by_position ? position[t] : t) * args.dims;
        for (int64_t row = t * heads; row < (t + 1) * heads; ++row)
          rotate_head(y.data<T>() + row * hd, x.data<T>() + row * hd, turn, hd, args,
                      A(1));  // the table holds the sign
      }
    });
  });
}

}  // namespace witan::kernels::cpu
