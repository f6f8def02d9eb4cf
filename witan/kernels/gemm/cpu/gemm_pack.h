// Packing: copies operands into the order in which the inner kernel reads them, converted to the type it computes in.
#pragma once

#include <algorithm>

#include "witan/kernels/gemm/cpu/gemm_vector.h"

namespace witan::kernels::cpu {

// An operand to be packed, in which lane j is a row m of op(a), or a column n of op(b): element (k, j) is data[k *
// stride + j] or, if k_adjacent, data[k + j * stride].
template <class S>
struct PackSource {
  const S* data;
  int64_t stride;
  bool k_adjacent;
};

// Memory that will be read later and is prefetched during other work: rows of `length` adjacent elements, in the order
// of addresses, which hardware prefetchers follow best.
template <class S>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const S* data, int64_t stride, int64_t rows, int64_t length)
      : row_(data), stride_(stride), length_(length), rows_(rows) {}

  // Part i of `parts` parts of nearly equal size.
  Ahead part(int64_t i, int64_t parts) const {
    const int64_t begin = rows_ * i / parts;
    return {row_ + begin * stride_, stride_, rows_ * (i + 1) / parts - begin, length_};
  }

  // Prefetches as many elements as a square block of lanes has.
  void fetch_block() {
    if (rows_ == 0) return;
#pragma GCC unroll 16
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(row_ + at_ + i * kLine);
    at_ += kLines * kLine;
    if (at_ < length_) return;
    at_ = 0;
    row_ += stride_;
    --rows_;
  }

 private:
  static constexpr int kLine = 64 / static_cast<int>(sizeof(S)), kBlock = kLanes<Accumulator<S>>;
  static constexpr int kLines = kBlock * kBlock / kLine;
  const S* row_ = nullptr;
  int64_t stride_ = 0, length_ = 0, rows_ = 0, at_ = 0;
};

// to[k][j] = lane j at k, for k < depth, j < lanes; further lanes are zeros.
template <int kWidth, class T, class S>
void pack_by_element(T* to, const PackSource<S>& from, int64_t depth, int64_t lanes) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < kWidth; ++j)
      to[k * kWidth + j] =
          j < lanes ? T(from.k_adjacent ? from.data[k + j * from.stride] : from.data[k * from.stride + j]) : T(0);
}

// Prefetches the lanes to the right, which are likely to be packed next.
template <int kWidth, class T, class S>
void pack_adjacent(T* to, const S* from, int64_t stride, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k)
    for (int j = 0; j < kWidth; j += kLanes<T>) {
      Vector<T> lanes;
      load(lanes, from + k * stride + j);
      store(to + k * kWidth + j, lanes);
    }
}

// block[j] = the kLanes elements from row j on.
template <class T, class S>
inline void load_rows(Vector<T>* block, const S* row, int64_t stride) {
  asm("" : "+r"(row), "+r"(stride));  // otherwise g++ keeps an address per row, and runs out of registers
#pragma GCC unroll 16
  for (int j = 0; j < kLanes<T>; ++j, row += stride) load(block[j], row);
}

// Transposes square blocks in registers, and leaves the k after the last whole block to the caller. Returns their
// first.
template <int kWidth, class T, class S>
int64_t pack_transposed(T* to, const S* from, int64_t stride, int64_t depth, int64_t lanes, Ahead<S> ahead) {
  constexpr int L = kLanes<T>;
  const int64_t whole = depth - depth % L;
  for (int64_t k = 0; k < whole; k += L)
    for (int j = 0; j < kWidth; j += L) {
      ahead.fetch_block();
      Vector<T> block[L];
      if (j + L <= lanes) {
        load_rows<T>(block, from + k + j * stride, stride);
      } else {
        for (int i = 0; i < L; ++i) {
          block[i] = Vector<T>{};
          if (j + i < lanes) load(block[i], from + k + (j + i) * stride);
        }
      }
      transpose<T>(block);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) store(to + (k + i) * kWidth + j, block[i]);
    }
  return whole;
}

// Packs `lanes` lanes, of which `readable` exist in memory: whole vectors may be read if they do not exceed those.
// `ahead` is read next if k is adjacent.
template <int kWidth, class T, class S>
void pack(T* to, const PackSource<S>& from, int64_t depth, int64_t lanes, int64_t readable, Ahead<S> ahead) {
  if (from.k_adjacent) {
    const int64_t done = pack_transposed<kWidth>(to, from.data, from.stride, depth, lanes, ahead);
    pack_by_element<kWidth>(to + done * kWidth, PackSource<S>{from.data + done, from.stride, true}, depth - done,
                            lanes);
  } else if (readable >= kWidth) {
    pack_adjacent<kWidth>(to, from.data, from.stride, depth);
  } else {
    pack_by_element<kWidth>(to, from, depth, lanes);
  }
}

}  // namespace witan::kernels::cpu
