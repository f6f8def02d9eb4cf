// The schedule of forward and backward passes of each pipeline stage: pure functions, the same on every rank.
//
// Each of p stages holds v chunks of layers. Chunk c of stage s feeds chunk c of stage s + 1, and that of the last
// stage feeds chunk c + 1 of stage 0; gradients go the other way. A stage first runs only forwards (the warm-up), then
// forwards and backwards in turn, then the remaining backwards:
//   v = 1  1F1B ("PipeDream-Flush"), with a warm-up of p - s - 1 on stage s: at most p - s micro-batches are in flight.
//   v > 1  interleaved 1F1B: groups of g micro-batches pass through chunk after chunk, and the warm-up is
//          2 (p - s - 1) + (v - 1) g, which leaves time for every transfer.
// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.
// There, as in Megatron-LM, g = p and the interleaved schedule requires that p divides the number m of micro-batches.
// Here there are max(1, floor(m / p)) groups whose sizes differ by at most one, larger ones first. That is the same if
// p divides m, and equally good for any other m.
//
// If all forwards take equally long, and all backwards too, a step takes v max(m, p) + min(m, p) - 1 times those of a
// chunk, of which v m are work: the rest, (p - 1) / (v m) of the work for m >= p, is the bubble.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace witan {

struct Pipeline {
  enum class Passes : uint8_t { forward, both };

  int stages = 1;
  int chunks = 1;  // per stage; Megatron-LM's virtual pipeline stages
  int64_t micro_batches = 1;
  Passes passes = Passes::both;

  // Throws ConfigError if a number is below 1, or a single stage has several chunks.
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

// A stage's work in order; every function below takes a valid pipeline.
std::vector<Work> schedule_of(const Pipeline& pipeline, int stage);

// The work whose output this work takes; nullopt for the model's first forward and the loss's backward.
std::optional<StageWork> source_of(const Pipeline& pipeline, const StageWork& work);
// The work that takes its output; nullopt for the loss's forward and the backward of the model's first layer.
std::optional<StageWork> target_of(const Pipeline& pipeline, const StageWork& work);

// The most (micro-batch, chunk) pairs of a stage that are in flight: forward done, backward not.
int64_t most_in_flight(const Pipeline& pipeline, int stage);

// Pipeline bubble: idle time of the stages over the time for which they work.
double bubble_over_work(const Pipeline& pipeline);

// The steps of each stage: its computations, sends and receives, in an order that cannot deadlock. A pure function, the
// same on every rank.
//
// Group::send and recv are a rendezvous: a stage that sends is held up until its peer receives. So the steps of all
// stages are taken from one sequence in which every transfer stands once, for both of its ends. Whatever the speed of
// the stages, the first unfinished transfer of the sequence waits for computations alone. So there is no deadlock, and
// no need for a thread or a buffer besides the tensors themselves. That holds on every back end whose calls keep their
// order. Collectives within stages do not disturb it, because all ranks of a stage compute the same work between the
// same transfers.
//
// The sequence comes from a simulation in which backward takes twice as long as forward: a transfer is placed at the
// first moment at which its data are ready and neither end computes. A stage does not wait to send: it keeps its output
// and continues with other work until its peer is free too. A forward and the backward that follows it are not
// interrupted if the inputs of both have arrived, so that neighbours meet once for each such pair, however long either
// takes.
//
// Compared with non-blocking transfers, the rendezvous costs nothing with one chunk per stage, whatever the ratio of
// backward to forward. With several chunks it costs some percent of a step, less with more micro-batches.
struct PipelineStep {
  // compute: does the work. send: sends its output to a peer. recv: receives its input from a peer.
  enum class Kind : uint8_t { compute, send, recv };
  Kind kind;
  Work work;
  int peer = 0;  // the stage at the other end
  bool operator==(const PipelineStep&) const = default;
};

// The steps of each stage. The pipeline must be valid.
std::vector<std::vector<PipelineStep>> pipeline_steps(const Pipeline& pipeline);

}  // namespace witan
