// Forward and backward of attention on whole sequences, the reference for attention on divided sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "support/rank.h"
#include "witan/autograd/tape.h"

namespace witan::testing {

// [B, S] int32: each row has documents of these lengths in order. Undefined if there are no lengths.
inline Tensor document_ids(Rank& rank, int64_t B, int64_t S, const std::vector<int64_t>& lengths) {
  if (lengths.empty()) return {};
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < B; ++b)
    for (size_t i = 0; i < lengths.size(); ++i)
      ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  return rank.tensor<int32_t>({B, S}, ids);
}

// A whole sequence that every rank of a test can generate: queries [B, S, H, hd], keys [B, S, G, hd], values [B, S, G,
// hd_v].
struct WholeSequence {
  int64_t B, S, H, G, hd;
  DType dtype;
  std::vector<int64_t> documents = {};  // lengths, equal in every row; empty: no ids
  double dropout = 0;
  int64_t window = 0;
  int64_t hd_v = hd;

  Tensor ids(Rank& rank) const { return document_ids(rank, B, S, documents); }
  std::vector<Tensor> inputs(Rank& rank) const {
    return {rank.normal({B, S, H, hd}, dtype, "q"), rank.normal({B, S, G, hd}, dtype, "k"),
            rank.normal({B, S, G, hd_v}, dtype, "v")};
  }
  Tensor dy(Rank& rank) const { return rank.normal({B, S, H, hd_v}, dtype, "dy"); }
};

using Attend = std::function<Var(Tape&, const std::vector<Var>&)>;  // called with q, k and v

// y, dq, dk, dv
inline std::vector<Tensor> attention_pass(Stream& stream, const std::vector<Tensor>& inputs, const Tensor& dy,
                                          const Attend& attend) {
  Tape tape(stream);
  std::vector<Var> in;
  for (const Tensor& input : inputs) in.push_back(tape.input(input));
  const Var y = attend(tape, in);
  tape.backward({{y, dy}});
  return {y.value(), tape.gradient(in[0]), tape.gradient(in[1]), tape.gradient(in[2])};
}

}  // namespace witan::testing
