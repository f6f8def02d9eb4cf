// Places and entries of compressed attention. A block makes an entry; its threads have channels.
#include "witan/kernels/attention/cuda/sequence_place.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kRowThreads = 1024;

unsigned blocks_of(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

// A block has a row; each thread has a run of its tokens.
__global__ void __launch_bounds__(kRowThreads)
    places_kernel(int32_t* rows, int32_t* begins, int32_t* positions, const int32_t* ids, int S) {
  __shared__ int last_begin[kRowThreads];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * S;
  const int each = (S + kRowThreads - 1) / kRowThreads, first = min(static_cast<int>(threadIdx.x) * each, S),
            end = min(first + each, S);
  const auto begins_at = [&](int at) { return at == 0 || (ids && ids[row + at] != ids[row + at - 1]); };
  int last = -1;
  for (int at = first; at < end; ++at)
    if (begins_at(at)) last = at;
  last_begin[threadIdx.x] = last;
  __syncthreads();
  int begin = 0;
  for (int i = static_cast<int>(threadIdx.x) - 1; i >= 0; --i)
    if (last_begin[i] >= 0) {
      begin = last_begin[i];
      break;
    }
  for (int at = first; at < end; ++at) {
    if (begins_at(at)) begin = at;
    rows[row + at] = static_cast<int32_t>(blockIdx.x);
    begins[row + at] = begin;
    positions[row + at] = ids && ids[row + at] < 0 ? -1 : at - begin;
  }
}

__global__ void __launch_bounds__(kThreads)
    no_entries_kernel(int32_t* slots, int32_t* positions, int32_t* turns, int64_t count) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (slot < count) slots[slot] = -1, positions[slot] = turns[slot] = 0;
}

__global__ void __launch_bounds__(kThreads)
    entry_places_kernel(int32_t* slots, int32_t* positions, int32_t* turns, const int32_t* turns_of_tokens,
                        Places places, int64_t E, int m) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= places.tokens) return;
  const Place at = places[t];
  if (at.padding() || (at.position + 1) % m != 0) return;
  const int64_t slot = at.row * E + at.first_entry(m) + at.position / m;
  slots[slot] = static_cast<int32_t>(t - m + 1);
  positions[slot] = at.position - m + 1;
  turns[slot] = turns_of_tokens[t - m + 1];
}

__global__ void __launch_bounds__(kThreads)
    entry_positions_kernel(int32_t* to, const int32_t* positions, int64_t tokens, int m) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tokens) to[t] = positions[t] / m * m;
}

// The sizes of what entries are made of.
template <class T>
struct Sources {
  const T *kv, *gate;
  const Acc<T>* bias;
  int m, d, wd;
  bool overlap;

  explicit Sources(const EntryInputs& in)
      : kv(ptr<const T>(in.kv)),
        gate(ptr<const T>(in.gate)),
        bias(ptr<const Acc<T>>(in.bias)),
        m(static_cast<int>(in.tokens_of_entry())),
        d(static_cast<int>(in.channels())),
        wd(static_cast<int>(in.kv.shape().last())),
        overlap(in.overlap) {}

  // Parts of an entry: with overlap m tokens of the entry before, unless the sequence begins with this one, and its
  // own.
  __device__ int first_part(bool begins) const { return overlap && !begins ? -m : 0; }
  __device__ int column(int part) const { return part < 0 || !overlap ? 0 : d; }
  __device__ Acc<T> of_bias(int part, int c) const {
    return bias[(part < 0 ? part + m : part) * wd + column(part) + c];
  }
};

// The softmax over parts of channel c, whose gates and values gate(part) and kv(part) return.
template <class A>
struct Softmax {
  A top, sum, mean;
};
template <class T, class Gate, class Kv>
__device__ Softmax<Acc<T>> entry_softmax(const Sources<T>& of, bool begins, int c, const Gate& gate, const Kv& kv) {
  using A = Acc<T>;
  A top = -static_cast<A>(INFINITY), sum = 0, mean = 0;
  for (int part = of.first_part(begins); part < of.m; ++part) top = max(top, gate(part) + of.of_bias(part, c));
  for (int part = of.first_part(begins); part < of.m; ++part) {
    const A weight = exp(gate(part) + of.of_bias(part, c) - top);
    sum += weight;
    mean += weight * kv(part);
  }
  return {top, sum, mean / sum};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    entries_kernel(T* entries, Sources<T> of, const int32_t* slots, const int32_t* positions) {
  using A = Acc<T>;
  const int64_t slot = blockIdx.x, first = slots[slot];
  const bool begins = positions[slot] == 0;
  for (int c = threadIdx.x; c < of.d; c += kThreads) {
    const auto at = [&](int part) { return (first + part) * of.wd + of.column(part) + c; };
    entries[slot * of.d + c] =
        first < 0 ? convert<T>(A(0))
                  : convert<T>(entry_softmax<T>(
                                   of, begins, c, [&](int part) { return convert<A>(of.gate[at(part)]); },
                                   [&](int part) { return convert<A>(of.kv[at(part)]); })
                                   .mean);
  }
}

// A block has a token: its two halves, or its one, of the entries that they belong to.
template <class T>
__global__ void __launch_bounds__(kThreads)
    entries_backward_kernel(T* dkv, T* dgate, const T* dentries, Sources<T> of, Places places, int64_t S, int64_t E) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x, row = t / S;
  const Place at = places[t];
  for (int column = threadIdx.x; column < of.wd; column += kThreads) {
    const bool for_next = of.overlap && column < of.d;
    const int c = column % of.d, number = at.position / of.m + (for_next ? 1 : 0);
    const int64_t first = row * S + at.begin + static_cast<int64_t>(number) * of.m;  // the entry's first token
    A gradient = 0, of_gate = 0;
    // The entry is there if its last token is of the same sequence.
    const int64_t last = first + of.m - 1;
    const bool made =
        !at.padding() && last < (row + 1) * S && places[last].begin == at.begin && !places[last].padding();
    if (made) {
      const auto source = [&](int part) { return (first + part) * of.wd + of.column(part) + c; };
      const auto gate = [&](int part) { return convert<A>(of.gate[source(part)]); };
      const auto kv = [&](int part) { return convert<A>(of.kv[source(part)]); };
      const Softmax<A> softmax = entry_softmax<T>(of, number == 0, c, gate, kv);
      const int part = static_cast<int>(t - first);
      const A weight = exp(gate(part) + of.of_bias(part, c) - softmax.top) / softmax.sum;
      const int64_t slot = row * E + at.first_entry(of.m) + number;
      gradient = weight * convert<A>(dentries[slot * of.d + c]);
      of_gate = gradient * (kv(part) - softmax.mean);
    }
    dkv[t * of.wd + column] = convert<T>(gradient);
    dgate[t * of.wd + column] = convert<T>(of_gate);
  }
}

// A thread has one number of the bias, and adds up the gates' gradients in the order of tokens.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_backward_kernel(Acc<T>* dbias, const T* dgate, Places places, int m, int wd) {
  using A = Acc<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= static_cast<int64_t>(m) * wd) return;
  const int j = static_cast<int>(at / wd), column = static_cast<int>(at % wd);
  A sum = 0;
  for (int64_t t = 0; t < places.tokens; ++t) {
    const Place place = places[t];
    if (!place.padding() && place.position % m == j) sum += convert<A>(dgate[t * wd + column]);
  }
  dbias[at] = sum;
}

// Whether token t + offset is in the step, of the same sequence and that far from t.
__device__ bool in_step(const Places& places, int64_t t, int offset) {
  if (t + offset < 0 || t + offset >= places.tokens) return false;
  const Place here = places[t], there = places[t + offset];
  return there.row == here.row && there.position == here.position + offset;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    step_entries_kernel(T* entries, Sources<T> of, const T* kv_tails, const T* gate_tails, Places places) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x;
  const Place at = places[t];
  const bool completes = (at.position + 1) % of.m == 0;
  for (int c = threadIdx.x; c < of.d; c += kThreads) {
    A mean = 0;
    if (completes) {
      const auto source = [&](const T* step, const T* tails, int part) {
        const int offset = part - of.m + 1;
        const int64_t row = in_step(places, t, offset)
                                ? t + offset
                                : static_cast<int64_t>(at.row) * 2 * of.m + (at.position + offset) % (2 * of.m);
        return convert<A>((in_step(places, t, offset) ? step : tails)[row * of.wd + of.column(part) + c]);
      };
      mean = entry_softmax<T>(
                 of, at.position < of.m, c, [&](int part) { return source(of.gate, gate_tails, part); },
                 [&](int part) { return source(of.kv, kv_tails, part); })
                 .mean;
    }
    entries[t * of.d + c] = convert<T>(mean);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) tails_kernel(T* kv_tails, T* gate_tails, Sources<T> of, Places places) {
  const int64_t t = blockIdx.x;
  if (in_step(places, t, 2 * of.m)) return;  // which has the same slot
  const Place at = places[t];
  const int64_t row = static_cast<int64_t>(at.row) * 2 * of.m + at.position % (2 * of.m);
  for (int c = threadIdx.x; c < of.wd; c += kThreads) {
    kv_tails[row * of.wd + c] = of.kv[t * of.wd + c];
    gate_tails[row * of.wd + c] = of.gate[t * of.wd + c];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    append_kernel(T* cache, const T* entries, Places places, int64_t E, int m, int d) {
  const int64_t t = blockIdx.x;
  const Place at = places[t];
  if ((at.position + 1) % m != 0) return;
  for (int c = threadIdx.x; c < d; c += kThreads) cache[(at.row * E + at.position / m) * d + c] = entries[t * d + c];
}

// A block has a token, whose queries lie in shared memory; its threads have entries.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scores_kernel(Acc<T>* scores, const T* q, const T* w, const T* k, Places places, int64_t E, int64_t columns, int m,
                  int H, int d, Acc<T> scale) {
  using A = Acc<T>;
  extern __shared__ __align__(16) char shared[];
  T* const queries = reinterpret_cast<T*>(shared);
  const int64_t t = blockIdx.x;
  for (int i = threadIdx.x; i < H * d; i += kThreads) queries[i] = q[t * H * d + i];
  __syncthreads();
  const Place at = places[t];
  const int seen = at.padding() ? 0 : at.entries(m);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    A sum = -static_cast<A>(INFINITY);
    if (i < seen) {
      const T* const key = k + (at.row * E + at.first_entry(m) + i) * d;
      sum = 0;
      for (int h = 0; h < H; ++h) {
        A dot = 0;
        for (int c = 0; c < d; ++c) dot += convert<A>(queries[h * d + c]) * convert<A>(key[c]);
        sum += convert<A>(w[t * H + h]) * max(dot, A(0));
      }
      sum *= scale;
    }
    scores[t * columns + i] = sum;
  }
}

}  // namespace

void sequence_places(Stream& stream, const SequencePlaces& to, const Tensor& ids, int64_t S) {
  const int64_t rows = S == 0 ? 0 : to.rows.elements() / S;
  if (rows == 0) return;
  places_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, native(stream)>>>(
      ptr<int32_t>(to.rows), ptr<int32_t>(to.begins), ptr<int32_t>(to.positions), ptr<const int32_t>(ids),
      static_cast<int>(S));
}

void entry_places(Stream& stream, const EntryPlaces& to, const SequencePlaces& places, const Tensor& turns_of_tokens,
                  int64_t m) {
  const int64_t slots = to.slots.elements(), tokens = places.rows.elements();
  if (tokens == 0) return;
  int32_t *const of_slots = ptr<int32_t>(to.slots), *const positions = ptr<int32_t>(to.positions),
                 *const turns = ptr<int32_t>(to.turns);
  no_entries_kernel<<<blocks_of(slots), kThreads, 0, native(stream)>>>(of_slots, positions, turns, slots);
  entry_places_kernel<<<blocks_of(tokens), kThreads, 0, native(stream)>>>(
      of_slots, positions, turns, ptr<const int32_t>(turns_of_tokens), Places(places), to.slots.size(1),
      static_cast<int>(m));
}

void entry_positions(Stream& stream, const Tensor& to, const Tensor& positions, int64_t m) {
  if (to.elements() == 0) return;
  entry_positions_kernel<<<blocks_of(to.elements()), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(to), ptr<const int32_t>(positions), to.elements(), static_cast<int>(m));
}

void make_entries(Stream& stream, const Tensor& entries, const EntryInputs& in, const EntryPlaces& places) {
  if (entries.elements() == 0) return;
  dispatch_device(in.kv.dtype(), [&]<class T>() {
    entries_kernel<T><<<static_cast<unsigned>(places.slots.elements()), kThreads, 0, native(stream)>>>(
        ptr<T>(entries), Sources<T>(in), ptr<const int32_t>(places.slots), ptr<const int32_t>(places.positions));
  });
}

void make_entries_backward(Stream& stream, const EntryGradients& to, const Tensor& dentries, const EntryInputs& in,
                           const SequencePlaces& of_tokens, const EntryPlaces& places) {
  const int64_t tokens = of_tokens.rows.elements();
  const int64_t rows = places.slots.size(0);
  dispatch_device(in.kv.dtype(), [&]<class T>() {
    const Sources<T> of(in);
    if (tokens > 0)
      entries_backward_kernel<T><<<static_cast<unsigned>(tokens), kThreads, 0, native(stream)>>>(
          ptr<T>(to.dkv), ptr<T>(to.dgate), ptr<const T>(dentries), of, Places(of_tokens), tokens / rows,
          places.slots.size(1));
    bias_backward_kernel<T><<<blocks_of(to.dbias.elements()), kThreads, 0, native(stream)>>>(
        ptr<Acc<T>>(to.dbias), ptr<const T>(to.dgate), Places(of_tokens), of.m, of.wd);
  });
}

void make_entries_in_step(Stream& stream, const Tensor& entries, const EntryTails& tails, const EntryInputs& in,
                          const SequencePlaces& places) {
  const auto tokens = static_cast<unsigned>(places.rows.elements());
  if (tokens == 0) return;
  dispatch_device(in.kv.dtype(), [&]<class T>() {
    const Sources<T> of(in);
    T *const kv = ptr<T>(tails.kv), *const gate = ptr<T>(tails.gate);
    step_entries_kernel<T><<<tokens, kThreads, 0, native(stream)>>>(ptr<T>(entries), of, kv, gate, Places(places));
    tails_kernel<T><<<tokens, kThreads, 0, native(stream)>>>(kv, gate, of, Places(places));
  });
}

void append_entries(Stream& stream, const Tensor& cache, const Tensor& entries, const SequencePlaces& places,
                    int64_t m) {
  if (entries.elements() == 0) return;
  dispatch_device(cache.dtype(), [&]<class T>() {
    append_kernel<T><<<static_cast<unsigned>(entries.size(0)), kThreads, 0, native(stream)>>>(
        ptr<T>(cache), ptr<const T>(entries), Places(places), cache.size(1), static_cast<int>(m),
        static_cast<int>(entries.size(1)));
  });
}

void entry_scores(Stream& stream, const Tensor& scores, const Tensor& q, const Tensor& w, const Tensor& k,
                  const SequencePlaces& places, int64_t m, double scale) {
  if (scores.elements() == 0) return;
  dispatch_device(q.dtype(), [&]<class T>() {
    const auto H = static_cast<int>(q.size(1)), d = static_cast<int>(q.size(2));
    const int bytes = H * d * static_cast<int>(sizeof(T));
    cudaFuncSetAttribute(scores_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    scores_kernel<T><<<static_cast<unsigned>(q.size(0)), kThreads, static_cast<size_t>(bytes), native(stream)>>>(
        ptr<Acc<T>>(scores), ptr<const T>(q), ptr<const T>(w), ptr<const T>(k), Places(places), k.size(1),
        scores.size(1), static_cast<int>(m), H, d, static_cast<Acc<T>>(scale));
  });
}

}  // namespace witan::kernels::cuda
