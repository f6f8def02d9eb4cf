// The work of one group's backward is a triangle of (query tile, key tile) pairs, and a part of it is a range of
// either. Every gradient sums its pairs one by one, in order, so its bits depend neither on how the triangle is divided
// nor on where tiles begin. If groups divide well among the threads, a task is a whole group and forms all three
// gradients in one pass over the pairs; otherwise dq is formed in parts by query, then dk and dv in parts by key, which
// computes the scores twice.
#include <cmath>
#include <optional>

#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/cpu/attention_tile.h"

namespace witan::kernels::cpu {
namespace {

constexpr int64_t kTilesPerPart = 8;  // query tiles
constexpr int64_t kKeysPerPart = 2 * kKeys;

struct BackwardCall {
  Heads heads;
  const AttentionGradients& to;
  const Tensor &dy, &y, &lse;
  const AttentionInputs& in;
  std::optional<DropoutMask> mask;
};

// Query rows and keys [begin, end), with the gradients of one of them or both.
struct Part {
  Group group;
  int64_t first_row, last_row, first_key, last_key;
  bool queries, keys;
};

// One query tile's operands, in scratch memory that the tiles of a part use in turn.
template <class T>
class QueryOperands {
 public:
  using A = Accumulator<T>;
  A *q, *dq, *dy;                   // [kQueries, P], [kQueries, P], [kQueries, PV]; q is scaled, dq is not yet
  A *q_transposed, *dy_transposed;  // [P, kQueries], [PV, kQueries]
  alignas(kVectorBytes) std::array<A, kQueries<A>> lse, delta;

  // P, PV: hd and hd_v, padded
  static int64_t elements(int64_t P, int64_t PV) { return kQueries<A> * (3 * P + 2 * PV); }
  QueryOperands(Scratch<A>& scratch, int64_t P, int64_t PV) : P_(P), PV_(PV) {
    for (A** tile : {&q, &dq, &q_transposed}) *tile = scratch.take(kQueries<A> * P);
    for (A** tile : {&dy, &dy_transposed}) *tile = scratch.take(kQueries<A> * PV);
  }

  void read(const BackwardCall& call, const Group& group, const QueryTile<A>& tile) {
    unpack_queries<T>(q, group, call.in.q, A(call.in.scale), tile.first);
    unpack_queries<T>(dy, group, call.dy, A(1), tile.first);
    transpose_tile(q_transposed, q, P_);
    transpose_tile(dy_transposed, dy, PV_);
    lse.fill(A(0));
    delta.fill(A(0));
    for (int64_t lane = 0; lane < tile.count; ++lane) {
      const T* y = call.y.data<T>() + group.query_offset(tile.first + lane, call.heads.hd_v);
      const A* g = dy + lane * PV_;
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < call.heads.hd_v; ++d) dot += g[d] * A(y[d]);
      delta[static_cast<size_t>(lane)] = dot;
      const A log_sum = call.lse.data<A>()[group.lse_offset(tile.first + lane)];
      lse[static_cast<size_t>(lane)] = log_sum == -std::numeric_limits<A>::infinity() ? A(0) : log_sum;
    }
    std::fill_n(dq, kQueries<A> * P_, A(0));
  }

 private:
  int64_t P_, PV_;
};

// Turns s^T and dp^T [n, kQueries] into p = exp(s - lse) and ds = p (dp - delta), both transposed.
template <class A>
void score_gradients(A* s, A* dp, int64_t n, int64_t lanes, const A* lse, const A* delta) {
  constexpr int64_t L = kLanes<A>;
  for (int64_t lane = 0; lane < lanes; lane += L) {
    Vector<A> log_sum, pull;
    load(log_sum, lse + lane);
    load(pull, delta + lane);
    for (int64_t i = lane; i < n * kQueries<A>; i += kQueries<A>) {
      Vector<A> p, ds;
      load(p, s + i);
      load(ds, dp + i);
      p -= log_sum;
      exponential<A>(p);
      ds = p * (ds - pull);
      store(s + i, p);
      store(dp + i, ds);
    }
  }
}

// to = scale * from, row by row
template <class T, class A>
void write_row(T* to, const A* from, A scale, int64_t hd) {
#pragma omp simd
  for (int64_t d = 0; d < hd; ++d) to[d] = T(from[d] * scale);
}

// A part being computed: its keys, unpacked once, and the sums of dk and dv in scratch memory.
template <class T>
class PartRun {
 public:
  using A = Accumulator<T>;

  PartRun(const BackwardCall& call, const Part& part)
      : call_(call),
        part_(part),
        keys_(part.last_key - part.first_key),
        P_(padded<A>(call.heads.hd)),
        PV_(padded<A>(call.heads.hd_v)),
        scratch_((part.keys ? 2 : 1) * keys_ * (P_ + PV_) + (call.mask ? 3 : 2) * kKeys * Q +
                 QueryOperands<T>::elements(P_, PV_)),
        query_(scratch_, P_, PV_) {
    for (A** tile : {&s_, &dp_}) *tile = scratch_.take(kKeys * Q);
    if (call.mask) factors_ = scratch_.take(kKeys * Q);
    k_ = scratch_.take(keys_ * P_), v_ = scratch_.take(keys_ * PV_);
    unpack_keys<T>(k_, part.group, call.in.k, part.first_key, part.last_key);
    unpack_keys<T>(v_, part.group, call.in.v, part.first_key, part.last_key);
    if (!part.keys) return;
    dk_ = scratch_.take(keys_ * P_), dv_ = scratch_.take(keys_ * PV_);
    std::fill_n(dk_, keys_ * P_, A(0));
    std::fill_n(dv_, keys_ * PV_, A(0));
  }

  void run() {
    for (int64_t first = part_.first_row; first < part_.last_row; first += Q) run_queries(first);
    for (int64_t j = 0; part_.keys && j < keys_; ++j) {
      const int64_t hd = call_.heads.hd, hd_v = call_.heads.hd_v, key = part_.first_key + j;
      write_row(call_.to.dk.data<T>() + part_.group.key_offset(key, hd), dk_ + j * P_, A(1), hd);
      write_row(call_.to.dv.data<T>() + part_.group.key_offset(key, hd_v), dv_ + j * PV_, A(1), hd_v);
    }
  }

 private:
  static constexpr int64_t Q = kQueries<A>;

  void run_queries(int64_t first) {
    const QueryTile<A> tile(part_.group, call_.in, first);
    if (call_.mask) dropout_.emplace(*call_.mask, call_.in.dropout, part_.group, tile);
    bool read = false;
    for (int64_t key = std::max(part_.first_key, tile.first_key_tile()); key < std::min(part_.last_key, tile.keys);
         key += kKeys) {
      const int64_t n = tile.keys_from(key, std::min(key + kKeys, part_.last_key));
      const Sight sight = tile.sight(key, n);
      if (sight == Sight::none) continue;
      if (!std::exchange(read, true)) query_.read(call_, part_.group, tile);
      add_pairs(tile, key, n, sight);
    }
    if (!part_.queries) return;
    if (!read) std::fill_n(query_.dq, tile.count * P_, A(0));
    for (int64_t lane = 0; lane < tile.count; ++lane)
      write_row(call_.to.dq.data<T>() + part_.group.query_offset(first + lane, call_.heads.hd), query_.dq + lane * P_,
                A(call_.in.scale), call_.heads.hd);
  }

  void add_pairs(const QueryTile<A>& tile, int64_t key, int64_t n, Sight sight) {
    const int64_t j = key - part_.first_key;
    const A *k = k_ + j * P_, *v = v_ + j * PV_;
    multiply<A>(n, tile.lanes, call_.heads.hd, {k, P_, 1}, {query_.q_transposed, Q}, {s_, Q}, Write::overwrite);
    multiply<A>(n, tile.lanes, call_.heads.hd_v, {v, PV_, 1}, {query_.dy_transposed, Q}, {dp_, Q}, Write::overwrite);
    tile.hide(s_, key, n, sight);
    if (dropout_) {
      dropout_->draw(factors_, key, n);
      dropout_->apply(dp_, factors_, n);
    }
    score_gradients(s_, dp_, n, tile.lanes, query_.lse.data(), query_.delta.data());  // s: p^T, dp: ds^T
    if (dropout_) dropout_->apply(s_, factors_, n);
    if (part_.queries) multiply<A>(tile.count, P_, n, {dp_, 1, Q}, {k, P_}, {query_.dq, P_}, Write::accumulate);
    if (!part_.keys) return;
    multiply<A>(n, PV_, tile.count, {s_, Q, 1}, {query_.dy, PV_}, {dv_ + j * PV_, PV_}, Write::accumulate);
    multiply<A>(n, P_, tile.count, {dp_, Q, 1}, {query_.q, P_}, {dk_ + j * P_, P_}, Write::accumulate);
  }

  const BackwardCall& call_;
  const Part part_;
  const int64_t keys_, P_, PV_;  // P, PV: hd and hd_v, padded
  Scratch<A> scratch_;
  QueryOperands<T> query_;
  std::optional<TileDropout<A>> dropout_;
  A *s_, *dp_, *factors_ = nullptr;  // [kKeys, kQueries]
  A *k_, *v_;                        // [keys, P], [keys, PV]
  A *dk_ = nullptr, *dv_ = nullptr;  // likewise [keys, P], [keys, PV]
};

// One pass computes five products per pair, but may leave threads idle in the last round; two passes compute seven,
// with all threads busy.
bool whole_groups_pay(int64_t groups, int64_t threads) {
  const int64_t rounds = (groups + threads - 1) / threads;
  return 5 * rounds * threads <= 7 * groups;
}

template <class T>
void run_backward(Stream& stream, const BackwardCall& call) {
  constexpr int64_t Q = kQueries<Accumulator<T>>;
  const Heads& h = call.heads;
  const int64_t groups = h.groups();
  if (whole_groups_pay(groups, stream.pool().threads())) {
    stream.pool().run(groups, [&](int64_t i) {
      PartRun<T>(call, {Group(h, i), 0, h.rows(), 0, h.capacity, true, true}).run();
    });
    return;
  }
  const int64_t rows = kTilesPerPart * Q, parts = (h.rows() + rows - 1) / rows;
  stream.pool().run(groups * parts, [&](int64_t task) {
    const int64_t i = task / parts, first = (parts - 1 - task % parts) * rows;  // longest parts first
    const int64_t last = std::min(first + rows, h.rows());
    const int64_t first_key = h.first_key_of(first) / kKeys * kKeys, keys = std::max(first_key, h.keys_of(last - 1));
    PartRun<T>(call, {Group(h, i), first, last, first_key, keys, true, false}).run();
  });
  const int64_t key_parts = (h.capacity + kKeysPerPart - 1) / kKeysPerPart;
  stream.pool().run(groups * key_parts, [&](int64_t task) {
    const int64_t i = task / key_parts, first = task % key_parts * kKeysPerPart;
    const int64_t last = std::min(first + kKeysPerPart, h.capacity);
    const int64_t first_row = h.first_row_of(first) / Q * Q;  // the first tile that may see a key
    PartRun<T>(call, {Group(h, i), first_row, h.rows_of(last - 1), first, last, false, true}).run();
  });
}

}  // namespace

void attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  BackwardCall call{Heads(in), to, dy, y, lse, in, std::nullopt};
  if (in.dropout.on()) call.mask.emplace(in.dropout);
  if (call.heads.empty()) return;
  dispatch_floating(in.q.dtype(), [&]<class T>() { run_backward<T>(stream, call); });
}

}  // namespace witan::kernels::cpu
