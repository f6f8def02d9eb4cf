// A task takes a head of a row, in the backward the heads that read one key, document by document and chunk by chunk.
// Sums within a chunk are of at most kDeltaChunk terms and always in the same order, so that a document's bits depend
// on nothing else.
#include "witan/kernels/linear_attention/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/linear_attention/cpu/chunks.h"

namespace witan::kernels::cpu {
namespace {

template <class A>
using ChunkNumbers = std::vector<A>;

// A query or a key, and 1 / sqrt(|x|^2 + eps).
template <class T, class A>
A normalise(A* to, const T* x, int64_t n, A factor) {
  for (int64_t i = 0; i < n; ++i) to[i] = A(x[i]);
  const A r = A(1) / std::sqrt(dot_of(to, to, n) + A(kDeltaNormEps));
  for (int64_t i = 0; i < n; ++i) to[i] *= r * factor;
  return r;
}

// The gradient of x, given that of its normalised vector `unit` = x r factor.
template <class T, class A>
void denormalise(T* dx, const A* d, const A* unit, A r, A factor, int64_t n) {
  const A along = dot_of(d, unit, n) / factor;
  for (int64_t i = 0; i < n; ++i) dx[i] = T(r * (factor * d[i] - unit[i] * along));
}

// The queries and keys of one chunk, which the heads of a group share.
template <class T>
struct ChunkKeys {
  using A = Accumulator<T>;

  ChunkKeys(const DeltaInputs& in, int64_t group)
      : heads(in.heads),
        factor(A(1 / std::sqrt(static_cast<double>(heads.key_dim)))),
        group_(group),
        rows_(in.qkv.data<T>()),
        q(static_cast<size_t>(kDeltaChunk * heads.key_dim)),
        k(q.size()),
        q_scale(static_cast<size_t>(kDeltaChunk)),
        k_scale(q_scale.size()) {}

  // Tokens [first, first + count) of all rows' tokens.
  void load(int64_t first, int64_t count) {
    L = 0;
    append(rows_, first, count);
  }
  // Adds tokens [first, first + count) of `rows` to the chunk.
  void append(const T* rows, int64_t first, int64_t count) {
    const int64_t dk = heads.key_dim;
    for (int64_t i = 0; i < count; ++i, ++L) {
      const T* const from = rows + (first + i) * heads.channels() + group_ * dk;
      q_scale[static_cast<size_t>(L)] = normalise(query(L), from, dk, factor);
      k_scale[static_cast<size_t>(L)] = normalise(key(L), from + heads.key_channels(), dk, A(1));
    }
  }
  A* query(int64_t i) { return q.data() + i * heads.key_dim; }
  A* key(int64_t i) { return k.data() + i * heads.key_dim; }

  DeltaHeads heads;
  A factor;  // of queries
  int64_t L = 0;

 private:
  int64_t group_;
  const T* rows_;

 public:
  ChunkNumbers<A> q, k;              // [L, dk]
  ChunkNumbers<A> q_scale, k_scale;  // [L]
};

// A head of one chunk. With decays of channels γ[i] is a vector [dk], and d chooses its element.
template <class T, Decay kDecay>
struct ChunkHead {
  using A = Accumulator<T>;

  ChunkHead(const DeltaInputs& in, int64_t head)
      : in_(in),
        h(head),
        dk(in.heads.key_dim),
        dv(in.heads.value_dim),
        v(static_cast<size_t>(kDeltaChunk * dv)),
        u(v.size()),
        decays(kDecay == Decay::of_head ? 1 : dk),
        gamma(static_cast<size_t>(kDeltaChunk * decays)),
        beta(static_cast<size_t>(kDeltaChunk)) {}

  void load(ChunkKeys<T>& keys, int64_t first) {
    L = 0;
    append(in_, first, keys.L);
  }
  // Adds tokens [first, first + count) of `in` to the chunk.
  void append(const DeltaInputs& in, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i, ++L) {
      const int64_t at = i * in.heads.values + h;
      for (int64_t d = 0; d < decays; ++d) {
        const A before = L > 0 ? gamma[static_cast<size_t>((L - 1) * decays + d)] : A(0);
        gamma[static_cast<size_t>(L * decays + d)] = before + in.g.data<A>()[at * decays + d];
      }
      beta[static_cast<size_t>(L)] = in.beta.data<A>()[at];
      const T* const from = in.qkv.data<T>() + i * in.heads.channels() + 2 * in.heads.key_channels() + h * dv;
      for (int64_t e = 0; e < dv; ++e) value(L)[e] = A(from[e]);
    }
  }
  // U of the chunk's tokens from `begin` on, after the state S [dk, dv].
  void solve(ChunkKeys<T>& keys, const A* S, int64_t begin = 0) {
    for (int64_t i = begin; i < L; ++i) {
      A* const to = written(i);
      std::fill_n(to, dv, A(0));
      for (int64_t d = 0; d < dk; ++d) add_scaled(to, -grown(i, d) * keys.key(i)[d], S + d * dv, dv);
      for (int64_t e = 0; e < dv; ++e) to[e] = strength(i) * (value(i)[e] + to[e]);
      for (int64_t j = 0; j < i; ++j) add_scaled(to, -strength(i) * link(keys.key(i), keys, i, j), written(j), dv);
    }
  }
  // The state after the chunk.
  void advance(ChunkKeys<T>& keys, A* S) {
    for (int64_t d = 0; d < dk; ++d) {
      const A last = grown(L - 1, d);
      for (int64_t e = 0; e < dv; ++e) S[d * dv + e] *= last;
    }
    for (int64_t j = 0; j < L; ++j)
      for (int64_t d = 0; d < dk; ++d) add_scaled(S + d * dv, left(j, d) * keys.key(j)[d], written(j), dv);
  }

  A* value(int64_t i) { return v.data() + i * dv; }
  A* written(int64_t i) { return u.data() + i * dv; }
  A strength(int64_t i) const { return beta[static_cast<size_t>(i)]; }
  A grown(int64_t i, int64_t d) const { return std::exp(sum_of(i, d)); }  // since the chunk began
  A left(int64_t j, int64_t d) const { return between(L - 1, j, d); }     // at the chunk's end
  A between(int64_t i, int64_t j, int64_t d) const { return std::exp(sum_of(i, d) - sum_of(j, d)); }
  // Σ_d e^(γ[i,d] - γ[j,d]) x[d] k̂[j,d], x the query or key of token i
  A link(const A* x, ChunkKeys<T>& keys, int64_t i, int64_t j) const {
    if constexpr (kDecay == Decay::of_head) return between(i, j, 0) * dot_of(x, keys.key(j), dk);
    A sum = 0;
    for (int64_t d = 0; d < dk; ++d) sum += between(i, j, d) * x[d] * keys.key(j)[d];
    return sum;
  }

 private:
  A sum_of(int64_t i, int64_t d) const {
    return gamma[static_cast<size_t>(kDecay == Decay::of_head ? i : i * decays + d)];
  }

  const DeltaInputs& in_;

 public:
  int64_t h, dk, dv, L = 0;
  ChunkNumbers<A> v, u;   // [L, dv]
  int64_t decays;         // of a token: 1 or dk
  ChunkNumbers<A> gamma;  // [L, decays]
  ChunkNumbers<A> beta;   // [L]
};

// The outputs of the chunk's tokens from `begin` on; o: that of the first of these.
template <class T, Decay kDecay>
void write_outputs(ChunkHead<T, kDecay>& head, ChunkKeys<T>& keys, const Accumulator<T>* S, T* o, int64_t stride,
                   ChunkNumbers<Accumulator<T>>& sum, int64_t begin = 0) {
  using A = Accumulator<T>;
  for (int64_t i = begin; i < head.L; ++i) {
    std::ranges::fill(sum, A(0));
    for (int64_t d = 0; d < head.dk; ++d)
      add_scaled(sum.data(), head.grown(i, d) * keys.query(i)[d], S + d * head.dv, head.dv);
    for (int64_t j = 0; j <= i; ++j)
      add_scaled(sum.data(), head.link(keys.query(i), keys, i, j), head.written(j), head.dv);
    for (int64_t e = 0; e < head.dv; ++e) o[(i - begin) * stride + e] = T(sum[static_cast<size_t>(e)]);
  }
}

// A head's tokens of a generation step with the sums of the forward: earlier tokens of their chunk are in `kept`.
template <class T, Decay kDecay>
class DeltaHeadStep {
 public:
  using A = Accumulator<T>;

  DeltaHeadStep(const Tensor& o, const Tensor& states, const DeltaInputs& in, const DeltaChunk& kept, int64_t head)
      : o_(o),
        states_(states),
        in_(in),
        kept_(kept),
        before_{kept.qkv, kept.g, kept.beta, {}, in.heads},
        keys_(in, head / (in.heads.values / in.heads.keys)),
        head_(in, head),
        sum_(static_cast<size_t>(head_.dv)) {}

  // `token`: the number of the run's first token in the step.
  void run(const CacheRun& run, int64_t token) {
    const int64_t H = in_.heads.values, dk = head_.dk, dv = head_.dv, end = run.past + run.count;
    A* const S = states_.data<A>() + (run.row * H + head_.h) * dk * dv;
    begin_chunk();
    if (run.past > 0) load_kept(run.row, (run.past - 1) % kDeltaChunk + 1);
    for (int64_t position = run.past, count = 0; position < end; position += count, token += count) {
      const int64_t slot = position % kDeltaChunk;
      count = std::min(kDeltaChunk - slot, end - position);
      if (position == 0)
        std::fill_n(S, dk * dv, A(0));
      else if (slot == 0)
        head_.advance(keys_, S);
      if (slot == 0) begin_chunk();
      keys_.append(in_.qkv.data<T>(), token, count);
      head_.append(in_, token, count);
      head_.solve(keys_, S, slot);
      write_outputs(head_, keys_, S, o_.data<T>() + (token * H + head_.h) * dv, H * dv, sum_, slot);
    }
    for (int64_t i = 0; i < head_.L; ++i) std::copy_n(head_.written(i), dv, kept_solution(run.row, i));
  }

 private:
  void begin_chunk() { keys_.L = head_.L = 0; }
  void load_kept(int64_t row, int64_t count) {
    keys_.append(kept_.qkv.data<T>(), row * kDeltaChunk, count);
    head_.append(before_, row * kDeltaChunk, count);
    for (int64_t i = 0; i < count; ++i) std::copy_n(kept_solution(row, i), head_.dv, head_.written(i));
  }
  A* kept_solution(int64_t row, int64_t i) {
    return kept_.u.data<A>() + ((row * kDeltaChunk + i) * in_.heads.values + head_.h) * head_.dv;
  }

  const Tensor &o_, &states_;
  const DeltaInputs& in_;
  const DeltaChunk& kept_;
  DeltaInputs before_;
  ChunkKeys<T> keys_;
  ChunkHead<T, kDecay> head_;
  ChunkNumbers<A> sum_;
};

// The backward of the heads of a group, for one document at a time.
template <class T, Decay kDecay>
class DeltaGroupBackward {
 public:
  using A = Accumulator<T>;
  using Head = ChunkHead<T, kDecay>;

  DeltaGroupBackward(const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in, int64_t group)
      : to_(to),
        d_o_(d_o),
        in_(in),
        group_(group),
        keys_(in, group),
        dk_(in.heads.key_dim),
        dv_(in.heads.value_dim),
        dq_(keys_.q.size()),
        dkeys_(keys_.k.size()),
        du_(static_cast<size_t>(kDeltaChunk * dv_)),
        dout_(du_.size()),
        dbeta_(static_cast<size_t>(kDeltaChunk)) {
    const int64_t per_group = in.heads.values / in.heads.keys;
    for (int64_t r = 0; r < per_group; ++r) heads_.emplace_back(in, group * per_group + r);
    dS_.resize(heads_.size());
    dgamma_.resize(heads_.front().gamma.size());
  }

  // Tokens [begin, end) of all rows' tokens.
  void document(int64_t begin, int64_t end) {
    find_states(begin, end);
    for (auto& dS : dS_) dS.assign(static_cast<size_t>(dk_ * dv_), A(0));
    for (int64_t chunk = static_cast<int64_t>(states_.front().size()) - 1; chunk >= 0; --chunk) {
      const int64_t first = begin + chunk * kDeltaChunk;
      keys_.load(first, std::min(kDeltaChunk, end - first));
      std::ranges::fill(dq_, A(0));
      std::ranges::fill(dkeys_, A(0));
      for (size_t r = 0; r < heads_.size(); ++r) {
        heads_[r].load(keys_, first);
        head(heads_[r], states_[r][static_cast<size_t>(chunk)], dS_[r], first);
      }
      write_keys(first);
    }
  }

 private:
  void find_states(int64_t begin, int64_t end) {
    states_.assign(heads_.size(), {});
    std::vector<ChunkNumbers<A>> S(heads_.size(), ChunkNumbers<A>(static_cast<size_t>(dk_ * dv_), A(0)));
    for_chunks_of(kDeltaChunk, begin, end, [&](int64_t first, int64_t count) {
      keys_.load(first, count);
      for (size_t r = 0; r < heads_.size(); ++r) {
        states_[r].push_back(S[r]);
        if (first + count == end) continue;
        heads_[r].load(keys_, first);
        heads_[r].solve(keys_, S[r].data());
        heads_[r].advance(keys_, S[r].data());
      }
    });
  }

  // Adds a head's share to the gradients of queries and keys, writes its own, and turns dS from the gradient of the
  // state after the chunk into that of the state before it.
  void head(Head& of, const ChunkNumbers<A>& S, ChunkNumbers<A>& dS, int64_t first) {
    of.solve(keys_, S.data());
    std::ranges::fill(dgamma_, A(0));
    load_output_gradient(of, first);
    state_after(of, S, dS);
    ChunkNumbers<A> before(S.size(), A(0));
    outputs(of, S, before);
    solution(of, S, before);
    for (int64_t d = 0; d < dk_; ++d) {
      const A last = of.grown(of.L - 1, d);
      for (int64_t at = d * dv_; at < (d + 1) * dv_; ++at)
        dS[static_cast<size_t>(at)] = before[static_cast<size_t>(at)] + last * dS[static_cast<size_t>(at)];
    }
    write_head(of, first);
  }
  void load_output_gradient(const Head& of, int64_t first) {
    const int64_t stride = in_.heads.value_channels();
    for (int64_t i = 0; i < of.L; ++i)
      for (int64_t e = 0; e < dv_; ++e)
        dout_[static_cast<size_t>(i * dv_ + e)] = A(d_o_.data<T>()[(first + i) * stride + of.h * dv_ + e]);
  }
  // Backward of S' = e^γ[L-1] S + Σ left[j] k[j] u[j]ᵀ: sets dU, adds to dK and dγ.
  void state_after(Head& of, const ChunkNumbers<A>& S, const ChunkNumbers<A>& dS) {
    for (int64_t d = 0; d < dk_; ++d)
      decay_gradient(of.L - 1, d) += of.grown(of.L - 1, d) * dot_of(S.data() + d * dv_, dS.data() + d * dv_, dv_);
    for (int64_t j = 0; j < of.L; ++j) {
      A* const du = du_.data() + j * dv_;
      std::fill_n(du, dv_, A(0));
      for (int64_t d = 0; d < dk_; ++d) {
        add_scaled(du, of.left(j, d) * keys_.key(j)[d], dS.data() + d * dv_, dv_);
        const A of_key = of.left(j, d) * dot_of(dS.data() + d * dv_, of.written(j), dv_);
        key_gradient(j)[d] += of_key;
        pull(of.L - 1, j, d, of_key * keys_.key(j)[d]);
      }
    }
  }
  // Backward of O = e^γ Q S + P U: adds to dU, dQ, dK, dγ and the gradient of S.
  void outputs(Head& of, const ChunkNumbers<A>& S, ChunkNumbers<A>& before) {
    for (int64_t i = 0; i < of.L; ++i) {
      const A* const d_o = dout_.data() + i * dv_;
      for (int64_t d = 0; d < dk_; ++d) {
        const A of_query = of.grown(i, d) * dot_of(S.data() + d * dv_, d_o, dv_);
        query_gradient(i)[d] += of_query;
        decay_gradient(i, d) += of_query * keys_.query(i)[d];
        add_scaled(before.data() + d * dv_, of.grown(i, d) * keys_.query(i)[d], d_o, dv_);
      }
      for (int64_t j = 0; j <= i; ++j) {
        const A p = of.link(keys_.query(i), keys_, i, j);
        add_scaled(du_.data() + j * dv_, p, d_o, dv_);
        link_gradient(of, keys_.query(i), query_gradient(i), dot_of(d_o, of.written(j), dv_), p, i, j);
      }
    }
  }
  // Backward of (1 + A) U = R = β (V - e^γ K S): turns dU into dR, adds to dK, dγ and the gradient of S, and sets dβ.
  void solution(Head& of, const ChunkNumbers<A>& S, ChunkNumbers<A>& before) {
    for (int64_t i = of.L - 1; i >= 0; --i)
      for (int64_t j = 0; j < i; ++j)
        add_scaled(du_.data() + j * dv_, -of.strength(i) * of.link(keys_.key(i), keys_, i, j), du_.data() + i * dv_,
                   dv_);
    for (int64_t i = 0; i < of.L; ++i) {
      const A* const dr = du_.data() + i * dv_;
      A strength = dot_of(dr, of.value(i), dv_);
      for (int64_t d = 0; d < dk_; ++d) {
        const A of_key = of.grown(i, d) * dot_of(S.data() + d * dv_, dr, dv_);
        key_gradient(i)[d] -= of.strength(i) * of_key;
        strength -= of_key * keys_.key(i)[d];
        decay_gradient(i, d) -= of.strength(i) * of_key * keys_.key(i)[d];
        add_scaled(before.data() + d * dv_, -of.strength(i) * of.grown(i, d) * keys_.key(i)[d], dr, dv_);
      }
      for (int64_t j = 0; j < i; ++j) {
        const A a = of.link(keys_.key(i), keys_, i, j), da = -dot_of(dr, of.written(j), dv_);
        strength += da * a;
        link_gradient(of, keys_.key(i), key_gradient(i), of.strength(i) * da, a, i, j);
      }
      dbeta_[static_cast<size_t>(i)] = strength;
    }
  }
  // The backward of link(x, i, j), whose value is `link`, with gradient d.
  void link_gradient(const Head& of, const A* x, A* dx, A gradient, A link, int64_t i, int64_t j) {
    if constexpr (kDecay == Decay::of_head) {
      const A share = gradient * of.between(i, j, 0);
      add_scaled(dx, share, static_cast<const A*>(keys_.key(j)), dk_);
      add_scaled(key_gradient(j), share, x, dk_);
      pull(i, j, 0, gradient * link);
      return;
    }
    for (int64_t d = 0; d < dk_; ++d) {
      const A share = gradient * of.between(i, j, d), k = keys_.key(j)[d];
      dx[d] += share * k;
      key_gradient(j)[d] += share * x[d];
      pull(i, j, d, share * x[d] * k);
    }
  }
  A& decay_gradient(int64_t i, int64_t d) {
    return dgamma_[static_cast<size_t>(kDecay == Decay::of_head ? i : i * dk_ + d)];
  }
  // The gradient of γ[i] - γ[j] in channel d.
  void pull(int64_t i, int64_t j, int64_t d, A gradient) {
    decay_gradient(i, d) += gradient;
    decay_gradient(j, d) -= gradient;
  }
  void write_head(const Head& of, int64_t first) {
    const DeltaHeads& heads = in_.heads;
    for (int64_t i = of.L - 1; i >= 0; --i) {
      const int64_t at = (first + i) * heads.values + of.h;
      for (int64_t d = 0; d < of.decays; ++d) {
        if (i + 1 < of.L) decay_gradient(i, d) += decay_gradient(i + 1, d);
        to_.dg.data<A>()[at * of.decays + d] = decay_gradient(i, d);
      }
      to_.dbeta.data<A>()[at] = dbeta_[static_cast<size_t>(i)];
      T* const dvalue = to_.dqkv.data<T>() + (first + i) * heads.channels() + 2 * heads.key_channels() + of.h * dv_;
      for (int64_t e = 0; e < dv_; ++e) dvalue[e] = T(of.strength(i) * du_[static_cast<size_t>(i * dv_ + e)]);
    }
  }
  void write_keys(int64_t first) {
    for (int64_t i = 0; i < keys_.L; ++i) {
      T* const dq = to_.dqkv.data<T>() + (first + i) * in_.heads.channels() + group_ * dk_;
      const auto at = static_cast<size_t>(i);
      denormalise(dq, query_gradient(i), keys_.query(i), keys_.q_scale[at], keys_.factor, dk_);
      denormalise(dq + in_.heads.key_channels(), key_gradient(i), keys_.key(i), keys_.k_scale[at], A(1), dk_);
    }
  }
  A* query_gradient(int64_t i) { return dq_.data() + i * dk_; }
  A* key_gradient(int64_t i) { return dkeys_.data() + i * dk_; }

  const DeltaGradients& to_;
  const Tensor& d_o_;
  const DeltaInputs& in_;
  int64_t group_;
  ChunkKeys<T> keys_;
  std::vector<Head> heads_;
  int64_t dk_, dv_;
  std::vector<std::vector<ChunkNumbers<A>>> states_;  // of each head, before each chunk
  std::vector<ChunkNumbers<A>> dS_;                   // of each head
  ChunkNumbers<A> dq_, dkeys_, du_, dout_, dgamma_, dbeta_;
};

// Calls body.operator()<T, Decay>() for the inputs' dtype and decays.
template <class Body>
void dispatch_delta(const DeltaInputs& in, const Body& body) {
  dispatch_floating(in.qkv.dtype(), [&]<class T>() {
    if (in.decay() == Decay::of_head)
      body.template operator()<T, Decay::of_head>();
    else
      body.template operator()<T, Decay::of_channels>();
  });
}

}  // namespace

void gated_delta_forward(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in,
                         const DeltaMemory&) {
  const int64_t B = in.qkv.size(0), S = in.qkv.size(1), H = in.heads.values, per_group = H / in.heads.keys;
  const int64_t size = in.heads.key_dim * in.heads.value_dim, stride = in.heads.value_channels();
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    using A = Accumulator<T>;
    stream.pool().run(B * H, [&](int64_t task) {
      const int64_t b = task / H, h = task % H;
      ChunkKeys<T> keys(in, h / per_group);
      ChunkHead<T, kDecay> head(in, h);
      ChunkNumbers<A> state(static_cast<size_t>(size), A(0)), sum(static_cast<size_t>(head.dv));
      for (int64_t begin = 0, end = 0; begin < S; begin = end) {
        end = document_end(in.sequence_ids, b, begin, S);
        std::ranges::fill(state, A(0));
        if (begin == 0 && in.first.defined()) std::copy_n(in.first.data<A>() + task * size, size, state.data());
        for_chunks_of(kDeltaChunk, begin, end, [&](int64_t first, int64_t count) {
          keys.load(b * S + first, count);
          head.load(keys, b * S + first);
          head.solve(keys, state.data());
          write_outputs(head, keys, state.data(), o.data<T>() + (b * S + first) * stride + h * head.dv, stride, sum);
          if (first + count < end || (last.defined() && end == S)) head.advance(keys, state.data());
        });
      }
      if (last.defined()) std::ranges::copy(state, last.data<A>() + task * size);
    });
  });
}

void gated_delta_backward(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  const int64_t B = in.qkv.size(0), S = in.qkv.size(1), G = in.heads.keys;
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    stream.pool().run(B * G, [&](int64_t task) {
      const int64_t b = task / G;
      DeltaGroupBackward<T, kDecay> group(to, d_o, in, task % G);
      for (int64_t begin = 0, end = 0; begin < S; begin = end) {
        end = document_end(in.sequence_ids, b, begin, S);
        group.document(b * S + begin, b * S + end);
      }
    });
  });
}

void gated_delta_decode(Stream& stream, const Tensor& o, const Tensor& states, const DeltaInputs& in,
                        const CacheTokens& tokens, const DeltaChunk& chunk) {
  const DeltaHeads heads = in.heads;
  const int64_t H = heads.values, per_group = H / heads.keys, dk = heads.key_dim, dv = heads.value_dim;
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    using A = Accumulator<T>;
    if (chunk.qkv.defined()) {
      stream.pool().run(H, [&](int64_t h) {
        DeltaHeadStep<T, kDecay> step(o, states, in, chunk, h);
        int64_t token = 0;
        for (const CacheRun& run : tokens.runs) {
          step.run(run, token);
          token += run.count;
        }
      });
      for (const auto& [kept, x] : {std::pair{&chunk.qkv, &in.qkv}, {&chunk.g, &in.g}, {&chunk.beta, &in.beta}})
        keep_chunk(*kept, *x, tokens);
      return;
    }
    stream.pool().run(H, [&](int64_t h) {
      ChunkKeys<T> keys(in, h / per_group);
      ChunkHead<T, kDecay> head(in, h);
      ChunkNumbers<A> sum(static_cast<size_t>(dv));
      int64_t token = 0;
      for (const CacheRun& run : tokens.runs) {
        A* const S = states.data<A>() + (run.row * H + h) * dk * dv;
        if (run.past == 0) std::fill_n(S, dk * dv, A(0));
        for (int64_t i = 0; i < run.count; ++i, ++token) {
          keys.load(token, 1);
          head.load(keys, token);
          head.solve(keys, S);
          write_outputs(head, keys, S, o.data<T>() + (token * H + h) * dv, H * dv, sum);
          head.advance(keys, S);
        }
      }
    });
  });
}

}  // namespace witan::kernels::cpu
