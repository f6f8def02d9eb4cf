// Packing: operands are copied into the order in which the inner kernel reads them, converted to the type it computes
// in.
#pragma once

#include <algorithm>

#include "witan/kernels/gemm/cpu/gemm_vector.h"

namespace witan::kernels::cpu {

// How packing sees an operand: lines of kWidth lanes, one line per step k of the sum. Lane j of line k is
// data[k * stride + j] or, lanes_apart, data[k + j * stride].
template <class S>
struct Lines {
  const S* data;
  int64_t stride;
  bool lanes_apart;
};

// Memory that will be read later, asked for while other work is done: rows of `length` adjacent elements, in the order
// in which they lie, which is what a memory's own prefetching follows best.
template <class S>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const S* data, int64_t stride, int64_t rows, int64_t length)
      : row_(data), stride_(stride), length_(length), rows_(rows) {}

  // Part i of `parts` even ones.
  Ahead part(int64_t i, int64_t parts) const {
    const int64_t begin = rows_ * i / parts;
    return {row_ + begin * stride_, stride_, rows_ * (i + 1) / parts - begin, length_};
  }

  // Asks for as much as a square block of lanes takes.
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

// to[k][j] = lane j of line k, for k < depth, j < lanes; further lanes are zeros.
template <int kWidth, class T, class S>
void pack_slowly(T* to, const Lines<S>& from, int64_t depth, int64_t lanes) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < kWidth; ++j)
      to[k * kWidth + j] =
          j < lanes ? T(from.lanes_apart ? from.data[k + j * from.stride] : from.data[k * from.stride + j]) : T(0);
}

// The lanes to the right are likely to be packed next.
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
  asm("" : "+r"(row), "+r"(stride));  // else g++ keeps an address per row, and has no registers for them
#pragma GCC unroll 16
  for (int j = 0; j < kLanes<T>; ++j, row += stride) load(block[j], row);
}

// Square blocks are transposed in registers; lines beyond the last whole block are left to the caller.
template <int kWidth, class T, class S>
int64_t pack_apart(T* to, const S* from, int64_t stride, int64_t depth, int64_t lanes, Ahead<S> ahead) {
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

// `lanes` are wanted; `readable` of them exist in memory, so that whole vectors may be read where they are no fewer.
// `ahead` says what is read next where lanes lie apart.
template <int kWidth, class T, class S>
void pack(T* to, const Lines<S>& from, int64_t depth, int64_t lanes, int64_t readable, Ahead<S> ahead) {
  if (from.lanes_apart) {
    const int64_t done = pack_apart<kWidth>(to, from.data, from.stride, depth, lanes, ahead);
    pack_slowly<kWidth>(to + done * kWidth, Lines<S>{from.data + done, from.stride, true}, depth - done, lanes);
  } else if (readable >= kWidth) {
    pack_adjacent<kWidth>(to, from.data, from.stride, depth);
  } else {
    pack_slowly<kWidth>(to, from, depth, lanes);
  }
}

}  // namespace witan::kernels::cpu
