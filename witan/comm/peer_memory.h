// Direct access to the memory of the group's other ranks. Experts exchange rows through it without the host, so that
// the exchange can be captured into a graph; so do parts of an inner dim (gather_parts, sum_parts) and pieces of
// sequences (exchange_pieces).
//
// Dispatch pushes each row into the receive buffer of the rank that holds its expert, where the row stays: by expert,
// then source rank, then in the source's order, as kernels::receive_order has it. Combine pulls the rows of each token
// and sums them. Push and pull are each other's adjoint.
//
// All ranks of the group make the same calls in the same order, with buffers of one shape. A call begins on the device
// when every rank has come to it and ends when every rank is done, so that buffers are whole, and free, on either side.
// Errors as in group.h: CommError.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/kernels/attention/sequence_pieces.h"
#include "witan/tensor/ragged.h"

namespace witan {

// How the GPUs of a group's ranks reach each other, besides NCCL; none and host: the group offers no Group::peers().
enum class PeerAccess : uint8_t {
  none,
  host,    // ranks of one host exchange rows through its memory, with counts that stay on the device
  moves,   // for rows and pieces alone: its collectives, which may be on several streams at once, are made without
  wanted,  // its collectives too are made in peers' memory
};

class PeerMemory {
 public:
  static constexpr int kMostRanks = 16;          // of a group
  static constexpr int64_t kMostExperts = 1024;  // of all ranks together

  // Rows [.., D] of one floating dtype, each with a weight [..] of its accumulator dtype; one of both may be undefined.
  struct Rows {
    Tensor rows, weights;
  };
  // The destination of a send row as an int64: rank * kRank + row of that rank's buffer; -1: none.
  static constexpr int kRankBits = 40;
  static constexpr int64_t kRank = int64_t{1} << kRankBits;

  explicit PeerMemory(Group& group) : group_(group) {}
  virtual ~PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // counts [E] int64: this rank's send rows, which are in the order of experts -> groups of this rank's buffer of
  // `capacity` rows, by source too; remote [N] int64: where each send row goes. Rows beyond the capacity go nowhere and
  // become a CommError.
  void place_rows(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
                  int64_t capacity);
  // to[remote[i]] = from.rows[source[i] / topk], from.weights[source[i]] for every send row i that has a place and a
  // source [N] int64. Other rows of the buffers stay as they are.
  void push_rows(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
                 const Tensor& remote);
  // to.rows[t] = sum_k from.rows[remote[slot[t,k]]], summed in the accumulator dtype in the order of k;
  // to.weights[t,k] = from.weights[remote[slot[t,k]]]. A slot [T K] int64 of -1, or one without a place, adds nothing.
  void pull_rows(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote);

  // all_gather and reduce_scatter of group.h between tensors whose ranks' parts are not outermost, without copies that
  // pack them; n: the group's ranks. They count as those calls.
  // whole [A, n, B] of every rank: whole[:, r] = part [A, B] of rank r
  void gather_parts(Stream& stream, const Tensor& whole, const Tensor& part);
  // part [A, B] = the sum over ranks of whole[:, rank] of whole [A, n, B], in the tree of comm/reduce.h
  void sum_parts(Stream& stream, const Tensor& part, const Tensor& whole);
  // all_to_all_equal of pieces of up to kernels::kMostPieceCopies tensors, without copies that pack them: piece r of
  // every `from` becomes piece `rank` of rank r's `to`. All ranks give tensors of the same shapes and layouts.
  void exchange_pieces(Stream& stream, const std::vector<kernels::PieceCopy>& copies);

 protected:
  Group& group() const { return group_; }

 private:
  virtual void place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
                     int64_t capacity) = 0;
  virtual void push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
                    const Tensor& remote) = 0;
  virtual void pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) = 0;
  virtual void gather(Stream& stream, const Tensor& whole, const Tensor& part) = 0;
  virtual void sum(Stream& stream, const Tensor& part, const Tensor& whole) = 0;
  virtual void exchange(Stream& stream, const std::vector<kernels::PieceCopy>& copies) = 0;
  // `call`: its own name, where it counts as another operation.
  void count_sent(Stream& stream, const char* operation, double bytes, const char* call = nullptr);
  void check_parts(const char* what, const Tensor& whole, const Tensor& part) const;

  Group& group_;
};

}  // namespace witan
