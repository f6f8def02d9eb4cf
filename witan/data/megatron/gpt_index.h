// Megatron-Core's GPTDataset, number for number: which tokens its samples are made of, and their order. Source:
// megatron/core/datasets/gpt_dataset.py and build_sample_idx() of helpers.cpp, github.com/NVIDIA/Megatron-LM.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/megatron/blend.h"
#include "witan/data/megatron/index_cache.h"

namespace witan::megatron {

// The part of numpy.random.RandomState that Megatron-Core's datasets are shuffled with, number for number: MT19937
// (Matsumoto and Nishimura, ACM TOMACS 1998) from an integer seed, and the legacy shuffle of NumPy, whose stream its
// developers froze (NEP 19). Source: numpy/random/mtrand.pyx, and random_interval() of
// numpy/random/src/distributions/distributions.c.
class NumpyRandom {
 public:
  // RandomState(seed). The standard's engine is seeded as NumPy's, by init_genrand().
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // Uniform in [0, most]: masked bits, drawn again while they are too large.
  uint64_t interval(uint64_t most);

  // RandomState.shuffle() of an array of one dimension.
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 engine_;
};

// How often a dataset is read to give the samples that are wanted.
struct Epochs {
  int64_t tokens = 0;             // per epoch
  int64_t count = 1;              // whole epochs, laid end to end
  int64_t samples = 0;            // in all epochs
  std::optional<int64_t> before;  // samples before the last epoch, if that is shuffled apart from the others

  bool operator==(const Epochs&) const = default;
};

// `wanted`: samples; nothing: one epoch. The last epoch is shuffled apart if fewer than 80 % of its samples are wanted.
// Throws DataError if there is no token.
Epochs plan_epochs(int64_t tokens, std::optional<int64_t> wanted, int64_t sequence_length);

// The three indices.
struct GptIndex {
  std::vector<int32_t> document;  // [epochs * documents]: ids of sequences, in the order they are laid end to end
  std::vector<int64_t> place;     // [samples + 1]: of the sequence in `document` that sample i begins in,
  std::vector<int32_t> offset;    // and of its token there
  std::vector<uint32_t> shuffle;  // [samples]: which sample is read as the i-th
};

// Sequences [begin, end) of the dataset, shuffled by `seed`. Throws DataError above 2^32 - 2 samples.
GptIndex build_gpt_index(const IndexedDataset& dataset, int64_t begin, int64_t end, const Epochs& epochs,
                         int64_t sequence_length, uint32_t seed);

}  // namespace witan::megatron
