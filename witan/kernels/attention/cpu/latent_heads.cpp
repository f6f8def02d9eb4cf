#include <algorithm>
#include <vector>

#include "witan/kernels/attention/cpu/rotate.h"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

struct LatentSizes {
  int64_t tokens, heads, still, turning, value;  // H, n, R and hd_v
  int64_t key() const { return still + turning; }
  int64_t of_token() const { return heads * (2 * key() + value); }
};

LatentSizes latent_sizes(const Heads& heads, const LatentRows& rows) {
  const int64_t tokens = rows.rope_key.size(0), turning = rows.rope_key.size(1), value = heads.v.shape().last(),
                hd = heads.q.shape().last();
  return {tokens, tokens == 0 ? 0 : heads.q.elements() / (tokens * hd), hd - turning, turning, value};
}

// Without a table, nothing is rotated.
RopeArgs of_table(RopeArgs args, const Tensor& table) {
  if (!table.defined()) args.dims = 0;
  return args;
}

template <class A>
const A* angles_of(const Tensor& table, int64_t t) {
  return table.defined() ? table.data<A>() + t * table.size(1) : nullptr;
}

}  // namespace

void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args) {
  const LatentSizes n = latent_sizes(heads, rows);
  if (n.tokens * n.heads == 0) return;
  const RopeArgs rope = of_table(args, table);
  dispatch_floating(rows.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(n.tokens, kTaskElements / n.of_token(), [&](int64_t begin, int64_t end) {
      std::vector<T> shared(static_cast<size_t>(n.turning));
      for (int64_t t = begin; t < end; ++t) {
        const A* angles = angles_of<A>(table, t);
        rotate_head(shared.data(), rows.rope_key.data<T>() + t * n.turning, angles, n.turning, rope, A(1));
        const T *q_in = rows.q.data<T>() + t * n.heads * n.key(),
                *kv_in = rows.kv.data<T>() + t * n.heads * (n.still + n.value);
        T *q = heads.q.data<T>() + t * n.heads * n.key(), *k = heads.k.data<T>() + t * n.heads * n.key(),
          *v = heads.v.data<T>() + t * n.heads * n.value;
        for (int64_t h = 0; h < n.heads; ++h, q_in += n.key(), q += n.key(), v += n.value) {
          std::copy_n(q_in, n.still, q);
          rotate_head(q + n.still, q_in + n.still, angles, n.turning, rope, A(1));
          k = std::copy_n(kv_in, n.still, k);
          k = std::copy(shared.begin(), shared.end(), k);
          std::copy_n(kv_in + n.still, n.value, v);
          kv_in += n.still + n.value;
        }
      }
    });
  });
}

void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args) {
  const LatentSizes n = latent_sizes(gradients, to);
  if (n.tokens * n.heads == 0) return;
  const RopeArgs rope = of_table(args, table);
  dispatch_floating(to.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(n.tokens, kTaskElements / n.of_token(), [&](int64_t begin, int64_t end) {
      std::vector<A> sum(static_cast<size_t>(n.turning)), turned(sum.size());
      for (int64_t t = begin; t < end; ++t) {
        const A* angles = angles_of<A>(table, t);
        std::ranges::fill(sum, A(0));
        const T *dq = gradients.q.data<T>() + t * n.heads * n.key(),
                *dk = gradients.k.data<T>() + t * n.heads * n.key(),
                *dv = gradients.v.data<T>() + t * n.heads * n.value;
        T *q = to.q.data<T>() + t * n.heads * n.key(), *kv = to.kv.data<T>() + t * n.heads * (n.still + n.value);
        for (int64_t h = 0; h < n.heads; ++h, dq += n.key(), dk += n.key(), dv += n.value, q += n.key()) {
          std::copy_n(dq, n.still, q);
          rotate_head(q + n.still, dq + n.still, angles, n.turning, rope, A(-1));
          kv = std::copy_n(dk, n.still, kv);
          kv = std::copy_n(dv, n.value, kv);
          for (int64_t i = 0; i < n.turning; ++i) sum[static_cast<size_t>(i)] += A(dk[n.still + i]);
        }
        rotate_head(turned.data(), sum.data(), angles, n.turning, rope, A(-1));
        T* key = to.rope_key.data<T>() + t * n.turning;
        for (int64_t i = 0; i < n.turning; ++i) store(key[i], turned[static_cast<size_t>(i)]);
      }
    });
  });
}

void turn_latent_channels(Stream& stream, const TurnedChannels& turned, const Tensor& q, const Tensor& rope_key,
                          const Tensor& table, const RopeArgs& args) {
  const int64_t tokens = rope_key.size(0), turning = rope_key.size(1), heads = turned.q.size(1);
  if (tokens * turning == 0) return;
  const int64_t hd = q.elements() / (tokens * heads);
  const RopeArgs rope = of_table(args, table);
  dispatch_floating(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(tokens, kTaskElements / ((heads + 1) * turning), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const auto turn = [&](T* to, const T* from) {
          rotate_head(to, from, angles_of<A>(table, t), turning, rope, A(1));
        };
        turn(turned.key.data<T>() + t * turning, rope_key.data<T>() + t * turning);
        for (int64_t h = t * heads; h < (t + 1) * heads; ++h)
          turn(turned.q.data<T>() + h * turning, q.data<T>() + (h + 1) * hd - turning);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
