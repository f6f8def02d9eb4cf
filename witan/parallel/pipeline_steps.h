// Orders the computations, sends and receives of each pipeline stage so that they cannot deadlock: a pure function, the
// same on every rank.
//
// Group::send and recv are a rendezvous: a stage that sends is held up until its peer receives. So the steps of all
// stages are taken from one sequence in which every transfer stands once, for both of its ends. Whatever the speed of
// the stages, the first transfer of the sequence that is not done waits for computations alone: there is no deadlock,
// with no thread and no buffer beside the tensors that are sent and received anyhow. That holds on every back end whose
// calls keep their order, and collectives within stages do not disturb it, as all ranks of a stage compute the same
// work between the same transfers.
//
// The sequence is that of a simulation in which backward takes twice as long as forward: a transfer stands at the first
// moment at which its data are there and neither end computes. A stage does not wait to send: until its peer is free
// too it continues with other work, and keeps its output. A forward and the backward that follows it are not
// interrupted where the inputs of both are there, so that neighbours meet once for each such pair, however long either
// takes.
//
// What the rendezvous costs against transfers that hold nobody up: nothing with one chunk to a stage, whatever the
// ratio of backward to forward; with several some percent of a step, the less the more micro-batches there are.
#pragma once

#include <vector>

#include "witan/parallel/schedule.h"

namespace witan {

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
