// Steps of generation that are replayed as CUDA graphs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/tensor/queue.h"

namespace witan {

// Steps in which each text has one new token, as most steps of a generation have. They are short and have many kernels,
// which on a GPU take longer to launch than to run. So for each number of texts the kernels are captured as one CUDA
// graph. Tokens and positions are read from fixed addresses.
class RecordedSteps {
 public:
  // For at most `texts` at a time, whose earlier tokens are in the states. Model and states must outlive this.
  // Allocates the memory of their logits.
  RecordedSteps(Stream& stream, Transformer& model, const SequenceStates& states, int64_t texts, bool repeatable);

  // Whether this model's kernels can be captured on this stream now: they cannot while each is timed or observed, if
  // the host counts the tokens of experts that are computed one after the other, or if the kernels of repeatable steps
  // depend on positions.
  static bool possible(Stream& stream, const ModelConfig& config, const SequenceStates& states, bool repeatable);
  // The logits [n, V] of n texts after one new token of each; valid until the next call.
  Tensor logits(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens);

 private:
  struct Recording {
    bool warm = false;  // it has run once uncaptured, so that libraries are loaded and have chosen their kernels
    std::unique_ptr<Graph> graph;
  };

  ModelInput input_of(const std::vector<kernels::CacheRun>& runs) const;
  void compute(const ModelInput& input);

  Stream& stream_;
  Transformer& model_;
  const SequenceStates& states_;
  const bool repeatable_;
  Tensor inputs_;                          // [3, texts] int32: tokens, positions and rows, written at once
  Tensor logits_;                          // [texts, V]
  std::map<int64_t, Recording> recorded_;  // by number of texts
};

}  // namespace witan
