// What a router decides: which experts each token visits, and with what weight.
#pragma once

#include "witan/moe/statistics.h"
#include "witan/nn/layers.h"
#include "witan/ops/experts/expert_replicas.h"

namespace witan {

// Most rows that travel where they go by hosts (host_dispatch.h); 0: as many as there are.
struct HostBounds {
  int64_t copies = 0;     // of tokens, from a rank to a host: so many travel, whatever there are
  int64_t send_rows = 0;  // from a rank to all ranks of its host
  int64_t part_rows = 0;  // and to one of them, as Routing::part_rows
};

// The result of routing T tokens, shared by dispatch, experts, combine and the report. Nobody changes it once it is
// made: a dispatcher that bounds rows or moves experts makes another one from it (expert_pools.h, replicas.h).
struct Routing {
  Var weights;            // [T, K] accumulator dtype
  Tensor ids;             // [T, K] int32; -1: dropped, beyond the capacity of its expert, or of padding
  Tensor counts;          // [E] int64: assignments per expert, dropped ones included; of all of a micro-batch's tokens
  Tensor kept;            // [E] int64: of these T tokens, those that are not dropped
  int64_t capacity = 0;   // most that an expert keeps, of which at most T are of these tokens; dropless: no less than T
  Tensor tokens = {};     // [1] int64: how many of a micro-batch's rows are not padding; undefined: all
  RouterRecord record;    // of all of a micro-batch's tokens
  int64_t pool_rows = 0;  // most that come to a rank together; 0: all that ranks may send
  int64_t part_rows = 0;  // most of one rank for one: so many travel, whatever there are; 0: as many as there are
  HostBounds host_bounds = {};  // where rows go by hosts
  int64_t send_rows = 0;        // most that a rank has for all; 0: all of its assignments
  // Where there are any, experts are places: ids are of R (E/R + S), and so many have counts and kept.
  ops::ExpertReplicas replicas = {};
};

// Training drops what is beyond an expert's capacity. Evaluation and generation never do: what a model makes of a text
// must not depend on the texts, and on how many tokens, are read together with it.
enum class Dropping : uint8_t {
  by_capacity,
  never,     // losses and statistics of the router, which nobody asks for, are those of the tokens at hand
  measured,  // nothing is dropped either, and losses and statistics are of the whole micro-batch, as in training
};

// What routers may go by besides the tokens' values: who they are, and what random numbers are drawn from. Without
// either, routers that draw choose by scores, and none can go by ids.
struct TokenSource {
  Tensor ids = {};             // [B, S] int32: those of all ranks of the tensor axis
  Randomness randomness = {};  // nothing is drawn without a step: evaluation, generation
  // [B, S] int32, likewise of all ranks of the tensor axis: where it is negative there is padding
  // (data/batches/batch.h), which is no token. Undefined: nothing is padding.
  Tensor sequence_ids = {};
};

}  // namespace witan
