// The schedule of forward and backward passes of each pipeline stage: pure functions, the same on every rank.
//
// Each of p stages holds v chunks of layers. Chunk c of stage s feeds chunk c of stage s + 1, and that of the last
// stage feeds chunk c + 1 of stage 0; gradients go the other way. A stage runs forward some times (the warm-up), then
// forward and backward in turn, then the backwards that are left:
//   v = 1  1F1B ("PipeDream-Flush"), with a warm-up of p - s - 1 on stage s: at most p - s micro-batches are in flight.
//   v > 1  interleaved 1F1B: groups of g micro-batches pass through chunk after chunk, and the warm-up is
//          2 (p - s - 1) + (v - 1) g, which leaves time for every transfer.
// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.
// There, as in Megatron-LM, g = p and the interleaved schedule needs p to divide the number m of micro-batches. Here
// there are max(1, floor(m / p)) groups whose sizes differ by one at most, the larger ones first: the same where p
// divides m, and as good for any other m.
//
// With forwards of one length and backwards of one length a step takes v max(m, p) + min(m, p) - 1 times those of a
// chunk, v m of which are work: the rest, (p - 1) / (v m) of the work for m >= p, is the bubble.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace witan {

struct Pipeline {
  enum class Passes : uint8_t { forward, both };

  int stages = 1;
  int chunks = 1;  // of each stage; Megatron-LM's virtual pipeline stages
  int64_t micro_batches = 1;
  Passes passes = Passes::both;

  // Throws ConfigError when a number is below 1, or a single stage has several chunks.
  void validate() const;
};

// A pass of a micro-batch through the layers of one chunk.
struct Work {
  enum class Pass : uint8_t { forward, backward };
  Pass pass = Pass::forward;
  int64_t micro_batch = 0;
  int chunk = 0;
  bool operator==(const Work&) const = default;
  bool operator<(const Work& other) const {
    return std::tie(pass, micro_batch, chunk) < std::tie(other.pass, other.micro_batch, other.chunk);
  }
};

// Work of a stage.
struct StageWork {
  int stage;
  Work work;
  bool operator==(const StageWork&) const = default;
};

// In the order of its computation; every function below takes a valid pipeline.
std::vector<Work> schedule_of(const Pipeline& pipeline, int stage);

// Whose output this work takes; none for the model's first forward and the loss's backward.
std::optional<StageWork> source_of(const Pipeline& pipeline, const StageWork& work);
// What takes its output; none for the loss's forward and the model's first layer's backward.
std::optional<StageWork> target_of(const Pipeline& pipeline, const StageWork& work);

// The most (micro-batch, chunk) pairs of a stage whose forward is done and whose backward is not.
int64_t most_in_flight(const Pipeline& pipeline, int stage);

// The time for which stages idle, over that for which they work.
double bubble_over_work(const Pipeline& pipeline);

struct PipelineStep {
  // compute: the work. send: its output, to a peer. recv: its input, from a peer.
  enum class Kind : uint8_t { compute, send, recv };
  Kind kind;
  Work work;
  int peer = 0;  // the stage on the other side
  bool operator==(const PipelineStep&) const = default;
};

// By stage. The pipeline is valid.
std::vector<std::vector<PipelineStep>> pipeline_steps(const Pipeline& pipeline);

}  // namespace witan
