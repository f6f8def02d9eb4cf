// Steps in which each text has one new token, as most steps of a generation are. They are short and have many kernels,
// so that on a GPU starting these takes longer than running them: for each number of texts the kernels are captured as
// a CUDA graph, which is started as a whole. Tokens and positions are read from fixed addresses.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/tensor/queue.h"

namespace witan {

class RecordedSteps {
 public:
  // For at most `texts` at a time, whose earlier tokens are in the states; these and the model must outlive it. Takes
  // the memory of their logits.
  RecordedSteps(Stream& stream, Transformer& model, const SequenceStates& states, int64_t texts);

  // Whether this model's kernels can be captured on this stream now: each may be timed, or looked at, and experts that
  // are computed one after the other are counted by the host.
  static bool possible(Stream& stream, const ModelConfig& config);
  // The logits [n, V] of n texts' next tokens, given one of each; they stand until the next call.
  Tensor logits(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens);

 private:
  struct Recording {
    bool warm = false;  // it has run once as it comes: libraries are loaded and have chosen their kernels
    std::unique_ptr<Graph> graph;
  };

  ModelInput input_of(const std::vector<kernels::CacheRun>& runs) const;
  void compute(const ModelInput& input);

  Stream& stream_;
  Transformer& model_;
  const SequenceStates& states_;
  Tensor tokens_, positions_, rows_;       // [texts] int32
  Tensor logits_;                          // [texts, V]
  std::map<int64_t, Recording> recorded_;  // by the number of texts
};

}  // namespace witan
