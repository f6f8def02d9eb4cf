// A router's decision: which experts each token visits, and with what weight.
#pragma once

#include "witan/moe/statistics.h"
#include "witan/nn/layers.h"
#include "witan/ops/experts/expert_replicas.h"

namespace witan {

// Fixed capacities of rows that travel by hosts (dispatchers/host_dispatch.h); 0: exact counts.
struct HostBounds {
  int64_t copies = 0;     // tokens from a rank to a host
  int64_t send_rows = 0;  // rows from a rank to all ranks of its host
  int64_t part_rows = 0;  // rows from a rank to another of its host, as Routing::part_rows
};

// The result of routing T tokens, shared by dispatch, experts, combine and the report. It is immutable: a dispatcher
// that bounds rows or moves experts makes another from it (dispatchers/receive_buffers.h, dispatchers/replicas.h).
struct Routing {
  Var weights;                  // [T, K] accumulator dtype
  Tensor ids;                   // [T, K] int32; -1: dropped, beyond its expert's capacity, or padding
  Tensor counts;                // [E] int64: all of a micro-batch's assignments to each expert, dropped ones included
  Tensor kept;                  // [E] int64: assignments of these T tokens that are not dropped
  int64_t capacity = 0;         // most assignments that an expert keeps; dropless: at least T
  Tensor tokens = {};           // [1] int64: how many of a micro-batch's rows are not padding; undefined: all
  RouterRecord record;          // for all of a micro-batch's tokens
  int64_t buffer_rows = 0;      // most rows that a rank receives in total; 0: all that ranks may send
  int64_t part_rows = 0;        // rows that each rank sends each other rank, used or not; 0: exact counts
  HostBounds host_bounds = {};  // if rows travel by hosts
  int64_t send_rows = 0;        // most rows that a rank sends in total; 0: all of its assignments
  // With replicas, experts are places: ids name one of R (E/R + S), each of which has an element of counts and kept.
  ops::ExpertReplicas replicas = {};
};

// Training drops assignments beyond an expert's capacity. Evaluation and generation never drop any: the output for a
// text must not depend on the other texts of its batch.
enum class Dropping : uint8_t {
  by_capacity,
  never,     // losses and statistics, which are not read, cover only the tokens at hand
  measured,  // nothing is dropped; losses and statistics cover the whole micro-batch, as in training
};

// Inputs of routers besides the tokens' values. Without randomness, routers that draw choose by scores; without ids,
// none can choose by them.
struct TokenSource {
  Tensor ids = {};             // [B, S] int32: of all tensor-parallel ranks' tokens
  Randomness randomness = {};  // nothing is drawn without a step: evaluation, generation
  // [B, S] int32, of all tensor-parallel ranks' tokens: negative for padding (data/batches/batch.h). Undefined: nothing
  // is padding.
  Tensor sequence_ids = {};
};

}  // namespace witan
