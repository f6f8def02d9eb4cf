// Replicas of experts (kernels/moe/expert_replicas.h): copies of the matrices of other ranks' experts, made where they
// are used, and the way of their gradients back to the experts' own ranks.
#pragma once

#include <cassert>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/moe/expert_replicas.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// The experts that other ranks than their own compute. Immutable; the same on all ranks of the expert axis. A
// rank's groups of rows are those of its own experts, followed by those of its slots.
struct ExpertReplicas {
  Group* group = nullptr;  // the expert axis; null: experts are computed on their own ranks only
  kernels::ReplicaChoice choice;

  bool any() const { return group != nullptr; }
  int64_t slots() const { return any() ? choice.hosted.size(1) : 0; }
};

class SavedReplicas {
 public:
  SavedReplicas(Tape& tape, const ExpertReplicas& replicas) : group_(replicas.group) {
    if (!group_) return;
    hosted_ = tape.save(replicas.choice.hosted);
    place_ = tape.save(replicas.choice.place);
  }
  ExpertReplicas value(Backward& b) const {
    if (!group_) return {};
    return {group_, {b.value(hosted_), b.value(place_)}};
  }

 private:
  Group* group_;
  Saved hosted_, place_;
};

// w [E/R, N, K] of this rank's own experts -> [S, N, K], those of the experts in its slots; what an empty slot has is
// undefined. A collective.
Tensor copy_to_replicas(Stream& stream, const ExpertReplicas& replicas, const Tensor& w);

// dw [E/R, N, K] += what the ranks found in their slots, found [S, N, K], of its own experts, slot by slot and rank by
// rank. Of assignments of one rank, `part`, alone, of which each expert has no other; -1: of all. A collective.
void add_from_replicas(Stream& stream, const ExpertReplicas& replicas, const Tensor& dw, const Tensor& found,
                       int64_t part);

// A product of all groups with w and, where there are replicas, their copies: compute(groups, stack) for either. Ranks
// wait for each other where copies are made: before they compute anything, since only both products together are even.
template <class Compute>
void for_stacks(Stream& stream, const ExpertReplicas& replicas, const RowGroups& groups, const Tensor& w,
                const Compute& compute) {
  if (!replicas.any()) return compute(groups, w);
  const int64_t own = w.size(0);
  const Tensor copies = copy_to_replicas(stream, replicas, w);
  compute(groups.of_experts(0, own), w);
  compute(groups.of_experts(own, replicas.slots()), copies);
}

// The gradient of w, into dw, from groups as Backward::write_parts gives its parts: compute(groups, gradient, write).
template <class Compute>
void write_stacks(Stream& stream, const ExpertReplicas& replicas, const RowGroups& groups, const Tensor& dw, Write how,
                  int64_t part, int64_t parts, const Compute& compute) {
  const RowGroups of = parts == 1 ? groups : groups.of_source(part);
  if (!replicas.any()) return compute(of, dw, how);
  const int64_t own = dw.size(0), slots = replicas.slots();
  compute(of.of_experts(0, own), dw, how);
  const Tensor found = stream.empty(dw.shape().with(0, slots), dw.dtype());
  compute(of.of_experts(own, slots), found, Write::overwrite);
  add_from_replicas(stream, replicas, dw, found, parts == 1 ? -1 : part);
}

// For a product that also fills block sums, which must not be requested with replicas: compute(groups, to).
template <class Compute>
void write_stacks(Stream& stream, const ExpertReplicas& replicas, const RowGroups& groups, const Backward::Part& dw,
                  const Compute& compute) {
  assert(dw.parts == 1 || dw.parts == groups.sources());
  assert(!replicas.any() || !dw.block_sums.defined());
  write_stacks(stream, replicas, groups, dw.to, dw.how, dw.part, dw.parts,
               [&](const RowGroups& of, const Tensor& to, Write write) {
                 compute(of, WeightGradient{to, write, dw.block_sums});
               });
}

}  // namespace witan::ops
