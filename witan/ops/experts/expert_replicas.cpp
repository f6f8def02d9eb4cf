#include "witan/ops/experts/expert_replicas.h"

#include "witan/comm/peer_memory.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/receive_buffer.h"

namespace witan::ops {
namespace {

using kernels::ReplicaRound;

// Rows of matrices [n, N, K]: [n N, K]. Of vectors [n, K]: themselves.
Tensor rows_of_matrices(const Tensor& stack) {
  const auto [rows, columns] = stack.shape().as_rows();
  return stack.reshape({rows, columns});
}

Tensor numbers(Stream& stream, int64_t count) {
  const Tensor number = stream.empty({count}, DType::i64);
  kernels::number_rows(stream, number);
  return number;
}

Tensor integers(Stream& stream, int64_t count) {
  return stream.empty({count}, DType::i64);
}

kernels::ReplicaCounts count_round(Stream& stream, const ExpertReplicas& replicas, const ReplicaRound& round) {
  const int64_t R = replicas.group->size();
  const kernels::ReplicaCounts counts{integers(stream, R), integers(stream, R), integers(stream, R * round.rows)};
  kernels::replica_counts(stream, counts, replicas.choice, round);
  return counts;
}

// Every rank sends matrices of its own experts, where ranks do not reach each other's memory.
void exchange_copies(Stream& stream, const ExpertReplicas& replicas, const Tensor& copies, const Tensor& w,
                     int64_t rows) {
  Group& group = *replicas.group;
  for (int64_t slot = 0; slot < replicas.slots(); ++slot) {
    const kernels::ReplicaCounts counts = count_round(stream, replicas, {group.rank(), slot, rows});
    const Tensor sent = stream.empty({counts.rows.elements(), w.size(1)}, w.dtype());
    kernels::gather_rows(stream, sent, w, counts.rows, 1);
    group.all_to_all(stream, copies.narrow(0, slot * rows, rows), counts.hosted, sent, counts.own);
  }
}

// found [N, K] of this rank's slot -> arrived [R N, K], what slots found of this rank's own experts
void exchange_found(Stream& stream, const ExpertReplicas& replicas, const Tensor& arrived, const Tensor& found,
                    const ReplicaRound& round) {
  if (PeerMemory* peers = replicas.group->peers()) {
    const Tensor homes = integers(stream, round.rows);
    kernels::replica_homes(stream, homes, replicas.choice, round, PeerMemory::kRank);
    return peers->push_rows(stream, {arrived, {}}, {found, {}}, numbers(stream, round.rows), 1, homes);
  }
  const kernels::ReplicaCounts counts = count_round(stream, replicas, round);
  replicas.group->all_to_all(stream, arrived, counts.own, found, counts.hosted);
}

}  // namespace

Tensor copy_to_replicas(Stream& stream, const ExpertReplicas& replicas, const Tensor& w) {
  const int64_t S = replicas.slots();
  const Tensor copies = stream.empty(w.shape().with(0, S), w.dtype());
  const Tensor from = rows_of_matrices(w), to = rows_of_matrices(copies);
  PeerMemory* peers = replicas.group->peers();
  if (!peers) {
    exchange_copies(stream, replicas, to, from, to.size(0) / S);
    return copies;
  }
  const Tensor sources = integers(stream, to.size(0));
  kernels::replica_sources(stream, sources, replicas.choice, replicas.group->rank(), PeerMemory::kRank);
  peers->pull_rows(stream, {to, {}}, {from, {}}, numbers(stream, to.size(0)), sources);
  return copies;
}

void add_from_replicas(Stream& stream, const ExpertReplicas& replicas, const Tensor& dw, const Tensor& found,
                       int64_t part) {
  const int64_t R = replicas.group->size(), S = replicas.slots();
  const Tensor rows = rows_of_matrices(found);
  const int64_t N = rows.size(0) / S;
  const Tensor arrived = stream.empty(dw.shape().with(0, R), dw.dtype()), experts = integers(stream, R);
  for (int64_t slot = 0; slot < S; ++slot) {
    const ReplicaRound round{replicas.group->rank(), slot, N, part};
    exchange_found(stream, replicas, rows_of_matrices(arrived), rows.narrow(0, slot * N, N), round);
    kernels::replica_experts(stream, experts, replicas.choice, round);
    kernels::add_to_experts(stream, dw, arrived, experts);
  }
}

}  // namespace witan::ops
