// A task takes a head of a row, in the backward the heads of a group, document by document and chunk by chunk. Sums
// within a chunk are of at most kSsdChunk terms and always in the same order, so that a document's bits depend on
// nothing else.
#include "witan/kernels/state_space/ssd.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/linear_attention/cpu/chunks.h"

namespace witan::kernels::cpu {
namespace {

// B and C of one chunk, which the heads of a group share, and their products.
template <class T>
struct SsdGroup {
  using A = Accumulator<T>;

  SsdGroup(const SsdInputs& in, int64_t group)
      : N(in.heads.state_dim),
        b(static_cast<size_t>(kSsdChunk * N)),
        c(b.size()),
        in_(in),
        products_(static_cast<size_t>(kSsdChunk * kSsdChunk)),
        stride_(in.heads.channels()),
        to_c_(in.heads.of_groups()),
        offset_(in.heads.inner() + group * N) {}

  // Tokens [first, first + count) of all rows' tokens.
  void load(int64_t first, int64_t count) {
    L = 0;
    append(in_, first, count);
    find_products(0);
  }
  // Adds tokens [first, first + count) of `in` to the chunk, without their products.
  void append(const SsdInputs& in, int64_t first, int64_t count) {
    const T* from = in.xbc.data<T>() + first * stride_ + offset_;
    for (int64_t i = 0; i < count; ++i, ++L, from += stride_)
      for (int64_t n = 0; n < N; ++n) {
        B(L)[n] = A(from[n]);
        C(L)[n] = A(from[to_c_ + n]);
      }
  }
  // The products of the chunk's tokens from `begin` on with those up to their own.
  void find_products(int64_t begin) {
    for (int64_t i = begin; i < L; ++i)
      for (int64_t j = 0; j <= i; ++j) products_[static_cast<size_t>(i * kSsdChunk + j)] = dot_of(C(i), B(j), N);
  }
  A* B(int64_t i) { return b.data() + i * N; }
  A* C(int64_t i) { return c.data() + i * N; }
  A product(int64_t i, int64_t j) const { return products_[static_cast<size_t>(i * kSsdChunk + j)]; }  // C[i].B[j]

  int64_t N, L = 0;
  std::vector<A> b, c;  // [L, N]

 private:
  const SsdInputs& in_;
  std::vector<A> products_;
  int64_t stride_, to_c_, offset_;
};

// A head of one chunk.
template <class T>
struct SsdHead {
  using A = Accumulator<T>;

  SsdHead(const SsdInputs& in, int64_t head)
      : in_(in),
        h(head),
        P(in.heads.head_dim),
        N(in.heads.state_dim),
        D(in.D.data<A>()[head]),
        inputs_(static_cast<size_t>(kSsdChunk * P)),
        gamma_(static_cast<size_t>(kSsdChunk)),
        dt_(gamma_.size()) {}

  void load(int64_t first, int64_t count) {
    L = 0;
    append(in_, first, count);
  }
  // Adds tokens [first, first + count) of `in` to the chunk.
  void append(const SsdInputs& in, int64_t first, int64_t count) {
    A sum = L > 0 ? gamma_[static_cast<size_t>(L - 1)] : A(0);
    for (int64_t i = first; i < first + count; ++i, ++L) {
      const int64_t at = i * in.heads.heads + h;
      sum += in.a.data<A>()[at];
      gamma_[static_cast<size_t>(L)] = sum;
      dt_[static_cast<size_t>(L)] = in.dt.data<A>()[at];
      const T* const from = in.xbc.data<T>() + i * in.heads.channels() + h * P;
      for (int64_t p = 0; p < P; ++p) x(L)[p] = A(from[p]);
    }
  }
  // The state after the chunk, of the state before it.
  void advance(SsdGroup<T>& group, A* S) {
    const A last = grown(L - 1);
    for (int64_t at = 0; at < N * P; ++at) S[at] *= last;
    for (int64_t j = 0; j < L; ++j)
      for (int64_t n = 0; n < N; ++n) add_scaled(S + n * P, left(j) * dt(j) * group.B(j)[n], x(j), P);
  }
  // y of the chunk's tokens from `begin` on, `stride` apart; `sum` has P numbers.
  void outputs(SsdGroup<T>& group, const A* S, T* y, int64_t stride, std::vector<A>& sum, int64_t begin = 0) {
    for (int64_t i = begin; i < L; ++i) {
      for (int64_t p = 0; p < P; ++p) sum[static_cast<size_t>(p)] = D * x(i)[p];
      for (int64_t n = 0; n < N; ++n) add_scaled(sum.data(), grown(i) * group.C(i)[n], S + n * P, P);
      for (int64_t j = 0; j <= i; ++j)
        add_scaled(sum.data(), between(i, j) * dt(j) * group.product(i, j), static_cast<const A*>(x(j)), P);
      for (int64_t p = 0; p < P; ++p) y[(i - begin) * stride + p] = T(sum[static_cast<size_t>(p)]);
    }
  }

  A* x(int64_t i) { return inputs_.data() + i * P; }
  A dt(int64_t i) const { return dt_[static_cast<size_t>(i)]; }
  A grown(int64_t i) const { return std::exp(gamma_[static_cast<size_t>(i)]); }  // since the chunk began
  A left(int64_t j) const { return between(L - 1, j); }                          // at the chunk's end
  A between(int64_t i, int64_t j) const {
    return std::exp(gamma_[static_cast<size_t>(i)] - gamma_[static_cast<size_t>(j)]);
  }

 private:
  const SsdInputs& in_;

 public:
  int64_t h, P, N, L = 0;
  A D;

 private:
  std::vector<A> inputs_;      // [L, P]
  std::vector<A> gamma_, dt_;  // [L]
};

// A head's tokens of a generation step with the sums of the forward: earlier tokens of their chunk are in `kept`.
template <class T>
class SsdHeadStep {
 public:
  using A = Accumulator<T>;

  SsdHeadStep(const Tensor& y, const Tensor& states, const SsdInputs& in, const SsdChunk& kept, int64_t head)
      : y_(y),
        states_(states),
        in_(in),
        before_{kept.xbc, kept.dt, kept.a, in.D, {}, in.heads},
        group_(in, head / (in.heads.heads / in.heads.groups)),
        head_(in, head),
        sum_(static_cast<size_t>(head_.P)) {}

  // `token`: the number of the run's first token in the step.
  void run(const CacheRun& run, int64_t token) {
    const int64_t H = in_.heads.heads, size = head_.N * head_.P, end = run.past + run.count;
    A* const S = states_.data<A>() + (run.row * H + head_.h) * size;
    begin_chunk();
    if (run.past > 0) {
      const int64_t count = (run.past - 1) % kSsdChunk + 1;
      group_.append(before_, run.row * kSsdChunk, count);
      head_.append(before_, run.row * kSsdChunk, count);
    }
    for (int64_t position = run.past, count = 0; position < end; position += count, token += count) {
      const int64_t slot = position % kSsdChunk;
      count = std::min(kSsdChunk - slot, end - position);
      if (position == 0)
        std::fill_n(S, size, A(0));
      else if (slot == 0)
        head_.advance(group_, S);
      if (slot == 0) begin_chunk();
      group_.append(in_, token, count);
      group_.find_products(slot);
      head_.append(in_, token, count);
      head_.outputs(group_, S, y_.data<T>() + (token * H + head_.h) * head_.P, in_.heads.inner(), sum_, slot);
    }
  }

 private:
  void begin_chunk() { group_.L = head_.L = 0; }

  const Tensor &y_, &states_;
  const SsdInputs& in_;
  SsdInputs before_;
  SsdGroup<T> group_;
  SsdHead<T> head_;
  std::vector<A> sum_;
};

// The backward of the heads of a group, for one document at a time.
template <class T>
class SsdGroupBackward {
 public:
  using A = Accumulator<T>;

  SsdGroupBackward(const SsdGradients& to, const Tensor& dy, const SsdInputs& in, int64_t group)
      : to_(to),
        dy_(dy),
        in_(in),
        number_(group),
        group_(in, group),
        P_(in.heads.head_dim),
        N_(in.heads.state_dim),
        db_(group_.b.size()),
        dc_(group_.c.size()),
        dout_(static_cast<size_t>(kSsdChunk * P_)),
        dx_(dout_.size()),
        dgamma_(static_cast<size_t>(kSsdChunk)),
        ddt_(dgamma_.size()) {
    const int64_t of_group = in.heads.heads / in.heads.groups;
    for (int64_t r = 0; r < of_group; ++r) heads_.emplace_back(in, group * of_group + r);
    dS_.resize(heads_.size());
  }

  // Tokens [begin, end) of all rows' tokens.
  void document(int64_t begin, int64_t end) {
    find_states(begin, end);
    for (auto& dS : dS_) dS.assign(static_cast<size_t>(N_ * P_), A(0));
    for (int64_t chunk = static_cast<int64_t>(states_.front().size()) - 1; chunk >= 0; --chunk) {
      const int64_t first = begin + chunk * kSsdChunk, count = std::min(kSsdChunk, end - first);
      group_.load(first, count);
      std::ranges::fill(db_, A(0));
      std::ranges::fill(dc_, A(0));
      for (size_t r = 0; r < heads_.size(); ++r) {
        heads_[r].load(first, count);
        head(heads_[r], states_[r][static_cast<size_t>(chunk)], dS_[r], first);
      }
      write_group(first);
    }
  }

 private:
  void find_states(int64_t begin, int64_t end) {
    states_.assign(heads_.size(), {});
    std::vector<std::vector<A>> S(heads_.size(), std::vector<A>(static_cast<size_t>(N_ * P_), A(0)));
    for_chunks_of(kSsdChunk, begin, end, [&](int64_t first, int64_t count) {
      if (first + count < end) group_.load(first, count);
      for (size_t r = 0; r < heads_.size(); ++r) {
        states_[r].push_back(S[r]);
        if (first + count == end) continue;
        heads_[r].load(first, count);
        heads_[r].advance(group_, S[r].data());
      }
    });
  }

  // Adds a head's share to the gradients of B and C, writes its own, and turns dS from the gradient of the state after
  // the chunk into that of the state before it.
  void head(SsdHead<T>& of, const std::vector<A>& S, std::vector<A>& dS, int64_t first) {
    std::ranges::fill(dgamma_, A(0));
    const int64_t stride = in_.heads.inner();
    for (int64_t i = 0; i < of.L; ++i)
      for (int64_t p = 0; p < P_; ++p) {
        const A d = A(dy_.data<T>()[(first + i) * stride + of.h * P_ + p]);
        gradient(i)[p] = d;
        dx_[static_cast<size_t>(i * P_ + p)] = of.D * d;
      }
    state_after(of, S, dS);
    const A last = of.grown(of.L - 1);
    for (A& d : dS) d *= last;
    outputs(of, S, dS);
    write_head(of, first);
  }
  // Backward of S' = e^γ[L-1] S + Σ left[j] dt[j] B[j] x[j]ᵀ.
  void state_after(SsdHead<T>& of, const std::vector<A>& S, const std::vector<A>& dS) {
    A& of_end = dgamma_[static_cast<size_t>(of.L - 1)];
    of_end += of.grown(of.L - 1) * dot_of(S.data(), dS.data(), N_ * P_);
    for (int64_t j = 0; j < of.L; ++j) {
      A pull = 0;
      for (int64_t n = 0; n < N_; ++n) {
        const A share = of.left(j) * dot_of(dS.data() + n * P_, static_cast<const A*>(of.x(j)), P_);
        db_[static_cast<size_t>(j * N_ + n)] += of.dt(j) * share;
        pull += group_.B(j)[n] * share;
        add_scaled(dx_.data() + j * P_, of.left(j) * of.dt(j) * group_.B(j)[n], dS.data() + n * P_, P_);
      }
      ddt_[static_cast<size_t>(j)] = pull;
      of_end += of.dt(j) * pull;
      dgamma_[static_cast<size_t>(j)] -= of.dt(j) * pull;
    }
  }
  // Backward of Y = e^γ C S + M X, which adds to the gradient of S.
  void outputs(SsdHead<T>& of, const std::vector<A>& S, std::vector<A>& before) {
    for (int64_t i = 0; i < of.L; ++i) {
      const A* const d = gradient(i);
      A pull = 0;
      for (int64_t n = 0; n < N_; ++n) {
        const A share = of.grown(i) * dot_of(S.data() + n * P_, d, P_);
        dc_[static_cast<size_t>(i * N_ + n)] += share;
        pull += share * group_.C(i)[n];
        add_scaled(before.data() + n * P_, of.grown(i) * group_.C(i)[n], d, P_);
      }
      for (int64_t j = 0; j <= i; ++j) {
        const A decay = of.between(i, j), dM = dot_of(d, static_cast<const A*>(of.x(j)), P_);
        const A step = decay * group_.product(i, j), share = dM * decay * of.dt(j);
        add_scaled(dx_.data() + j * P_, step * of.dt(j), d, P_);
        add_scaled(dc_.data() + i * N_, share, static_cast<const A*>(group_.B(j)), N_);
        add_scaled(db_.data() + j * N_, share, static_cast<const A*>(group_.C(i)), N_);
        ddt_[static_cast<size_t>(j)] += dM * step;
        pull += dM * step * of.dt(j);
        dgamma_[static_cast<size_t>(j)] -= dM * step * of.dt(j);
      }
      dgamma_[static_cast<size_t>(i)] += pull;
    }
  }
  void write_head(const SsdHead<T>& of, int64_t first) {
    A decay = 0;
    for (int64_t i = of.L - 1; i >= 0; --i) {
      const int64_t at = (first + i) * in_.heads.heads + of.h;
      decay += dgamma_[static_cast<size_t>(i)];
      to_.da.data<A>()[at] = decay;
      to_.ddt.data<A>()[at] = ddt_[static_cast<size_t>(i)];
      T* const to = to_.dxbc.data<T>() + (first + i) * in_.heads.channels() + of.h * P_;
      for (int64_t p = 0; p < P_; ++p) to[p] = T(dx_[static_cast<size_t>(i * P_ + p)]);
    }
  }
  void write_group(int64_t first) {
    const SsdHeads& heads = in_.heads;
    for (int64_t i = 0; i < group_.L; ++i) {
      T* const to = to_.dxbc.data<T>() + (first + i) * heads.channels() + heads.inner() + number_ * N_;
      for (int64_t n = 0; n < N_; ++n) {
        to[n] = T(db_[static_cast<size_t>(i * N_ + n)]);
        to[heads.of_groups() + n] = T(dc_[static_cast<size_t>(i * N_ + n)]);
      }
    }
  }
  A* gradient(int64_t i) { return dout_.data() + i * P_; }

  const SsdGradients& to_;
  const Tensor& dy_;
  const SsdInputs& in_;
  int64_t number_;
  SsdGroup<T> group_;
  std::vector<SsdHead<T>> heads_;
  int64_t P_, N_;
  std::vector<std::vector<std::vector<A>>> states_;  // of each head, before each chunk
  std::vector<std::vector<A>> dS_;                   // of each head
  std::vector<A> db_, dc_, dout_, dx_, dgamma_, ddt_;
};

}  // namespace

void ssd_forward(Stream& stream, const Tensor& y, const Tensor& last, const SsdInputs& in, const SsdMemory&) {
  const int64_t B = in.xbc.size(0), S = in.xbc.size(1), H = in.heads.heads, of_group = H / in.heads.groups;
  const int64_t size = in.heads.state_dim * in.heads.head_dim, stride = in.heads.inner();
  dispatch_floating(in.xbc.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().run(B * H, [&](int64_t task) {
      const int64_t b = task / H, h = task % H;
      SsdGroup<T> group(in, h / of_group);
      SsdHead<T> head(in, h);
      std::vector<A> state(static_cast<size_t>(size), A(0)), sum(static_cast<size_t>(head.P));
      for (int64_t begin = 0, end = 0; begin < S; begin = end) {
        end = document_end(in.sequence_ids, b, begin, S);
        std::ranges::fill(state, A(0));
        if (begin == 0 && in.first.defined()) std::copy_n(in.first.data<A>() + task * size, size, state.data());
        for_chunks_of(kSsdChunk, begin, end, [&](int64_t first, int64_t count) {
          group.load(b * S + first, count);
          head.load(b * S + first, count);
          head.outputs(group, state.data(), y.data<T>() + (b * S + first) * stride + h * head.P, stride, sum);
          if (first + count < end || (last.defined() && end == S)) head.advance(group, state.data());
        });
      }
      if (last.defined()) std::ranges::copy(state, last.data<A>() + task * size);
    });
  });
}

void ssd_backward(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  const int64_t B = in.xbc.size(0), S = in.xbc.size(1), G = in.heads.groups, H = in.heads.heads;
  dispatch_floating(in.xbc.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().run(B * G, [&](int64_t task) {
      const int64_t b = task / G;
      SsdGroupBackward<T> group(to, dy, in, task % G);
      for (int64_t begin = 0, end = 0; begin < S; begin = end) {
        end = document_end(in.sequence_ids, b, begin, S);
        group.document(b * S + begin, b * S + end);
      }
    });
    if (!to.dD.defined()) return;
    const int64_t P = in.heads.head_dim, channels = in.heads.channels();
    sum_over_rows<T, A>(stream, to.dD, to.write_D, in.dt.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
      for (int64_t h = begin; h < end; ++h) {
        const T *x = in.xbc.data<T>() + t * channels + h * P, *d = dy.data<T>() + (t * H + h) * P;
        for (int64_t p = 0; p < P; ++p) sums[h - begin] += A(x[p]) * A(d[p]);
      }
    });
  });
}

void ssd_decode(Stream& stream, const Tensor& y, const Tensor& states, const SsdInputs& in, const CacheTokens& tokens,
                const SsdChunk& chunk) {
  const SsdHeads heads = in.heads;
  const int64_t H = heads.heads, of_group = H / heads.groups, size = heads.state_dim * heads.head_dim;
  dispatch_floating(in.xbc.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    if (chunk.xbc.defined()) {
      stream.pool().run(H, [&](int64_t h) {
        SsdHeadStep<T> step(y, states, in, chunk, h);
        int64_t token = 0;
        for (const CacheRun& run : tokens.runs) {
          step.run(run, token);
          token += run.count;
        }
      });
      for (const auto& [kept, x] : {std::pair{&chunk.xbc, &in.xbc}, {&chunk.dt, &in.dt}, {&chunk.a, &in.a}})
        keep_chunk(*kept, *x, tokens);
      return;
    }
    stream.pool().run(H, [&](int64_t h) {
      SsdGroup<T> group(in, h / of_group);
      SsdHead<T> head(in, h);
      std::vector<A> sum(static_cast<size_t>(head.P));
      int64_t token = 0;
      for (const CacheRun& run : tokens.runs) {
        A* const S = states.data<A>() + (run.row * H + h) * size;
        if (run.past == 0) std::fill_n(S, size, A(0));
        for (int64_t i = 0; i < run.count; ++i, ++token) {
          group.load(token, 1);
          head.load(token, 1);
          head.outputs(group, S, y.data<T>() + (token * H + h) * head.P, heads.inner(), sum);
          head.advance(group, S);
        }
      }
    });
  });
}

}  // namespace witan::kernels::cpu
