#include "witan/comm/peer_memory.h"

#include <algorithm>
#include <string>

#include "witan/base/error.h"
#include "witan/kernels/common/launch.h"

namespace witan {
namespace {

using kernels::bytes_of;
using Rows = PeerMemory::Rows;

// The bytes of one row with its weight.
double bytes_per_row(const Rows& pool) {
  const auto width = [](const Tensor& of) { return of.defined() ? static_cast<double>(row_bytes(of)) : 0.0; };
  return width(pool.rows) + width(pool.weights);
}

void check_rows(const char* what, const Rows& pool, const Rows& own, int64_t assignments) {
  const Tensor &there = pool.rows, &here = own.rows;
  require<ShapeError>(there.defined() == here.defined() && pool.weights.defined() == own.weights.defined() &&
                          (there.defined() || pool.weights.defined()),
                      what, ": the pool and this rank must have rows or weights alike");
  if (there.defined()) {
    require<ShapeError>(there.contiguous() && here.contiguous() && there.shape().dims() == 2 &&
                            here.shape().dims() == 2 && there.size(1) == here.size(1) &&
                            there.dtype() == here.dtype() && is_floating(there.dtype()),
                        what, ": rows must be contiguous [.., D] of one floating dtype, got ", there.dtype(), " ",
                        there.shape(), " and ", here.dtype(), " ", here.shape());
  }
  if (!pool.weights.defined()) return;
  require<ShapeError>(
      pool.weights.contiguous() && own.weights.contiguous() && pool.weights.shape().dims() == 1 &&
          pool.weights.dtype() == own.weights.dtype() && accumulator(own.weights.dtype()) == own.weights.dtype() &&
          own.weights.elements() == assignments,
      what, ": weights must be contiguous float32 or float64, [capacity] and [T K=", assignments, "], got ",
      pool.weights.dtype(), " ", pool.weights.shape(), " and ", own.weights.dtype(), " ", own.weights.shape());
}

}  // namespace

void PeerMemory::count_sent(Stream& stream, const char* operation, double bytes, const char* call) {
  group_.add_sent(operation, bytes);
  stream.count_exchange(group_.name(), call == nullptr ? operation : call, bytes, group_.size());
}

void PeerMemory::place_rows(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
                            int64_t capacity) {
  const int64_t E = counts.elements(), R = group_.size();
  require<ShapeError>(E % R == 0 && E <= kMostExperts && capacity < kRank && groups.source_count.defined() &&
                          groups.count.shape() == Shape{E / R} && groups.source_count.shape() == Shape({R, E / R}),
                      "place_rows: ", E, " experts on ", R, " ranks, at most ", kMostExperts, ", into groups ",
                      groups.count.shape());
  const double bytes = bytes_of(counts) * static_cast<double>(R - 1);
  count_sent(stream, "place_rows", bytes);
  kernels::charge(stream, "place_rows", {0, bytes + bytes_of(groups.source_count, remote)},
                  [&] { place(stream, groups, remote, counts, capacity); });
}

void PeerMemory::push_rows(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
                           const Tensor& remote) {
  check_rows("push_rows", to, from, from.weights.defined() ? from.weights.elements() : 0);
  require<ShapeError>(source.shape() == remote.shape() && source.contiguous() && remote.contiguous(),
                      "push_rows: source ", source.shape(), " and remote ", remote.shape(), " must be [N]");
  const double bytes = bytes_per_row(to) * static_cast<double>(remote.elements());
  count_sent(stream, "push_rows", bytes * (group_.size() - 1) / group_.size());
  kernels::charge(stream, "push_rows", {0, 2 * bytes + bytes_of(source, remote)},
                  [&] { push(stream, to, from, source, topk, remote); });
}

void PeerMemory::pull_rows(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) {
  check_rows("pull_rows", from, to, slot.elements());
  require<ShapeError>(slot.contiguous() && remote.contiguous() &&
                          (!to.rows.defined() || to.rows.size(0) == 0 || slot.elements() % to.rows.size(0) == 0),
                      "pull_rows: slot ", slot.shape(), " must be [T K]");
  // No row is asked for twice, and there may be fewer of them than slots.
  const auto assignments = static_cast<double>(std::min(slot.elements(), remote.elements()));
  const double bytes = bytes_per_row(from) * assignments;
  const double added = to.rows.defined() ? assignments * static_cast<double>(to.rows.size(1)) : 0;
  count_sent(stream, "pull_rows", bytes * (group_.size() - 1) / group_.size());
  kernels::charge(stream, "pull_rows", {added, bytes + bytes_of(to.rows, to.weights, slot)},
                  [&] { pull(stream, to, from, slot, remote); });
}

void PeerMemory::check_parts(const char* what, const Tensor& whole, const Tensor& part) const {
  require<ShapeError>(whole.shape().dims() == 3 && whole.size(1) == group_.size() &&
                          part.shape() == Shape({whole.size(0), whole.size(2)}) && whole.dtype() == part.dtype() &&
                          whole.contiguous() && part.contiguous(),
                      what, ": of ", group_.size(), " ranks, got ", whole.dtype(), " ", whole.shape(), " and ",
                      part.dtype(), " ", part.shape());
}

void PeerMemory::gather_parts(Stream& stream, const Tensor& whole, const Tensor& part) {
  check_parts("gather_parts", whole, part);
  count_sent(stream, "all_gather", bytes_of(part) * (group_.size() - 1), "gather_parts");
  if (!stream.is_meta()) gather(stream, whole, part);
}

void PeerMemory::sum_parts(Stream& stream, const Tensor& part, const Tensor& whole) {
  check_parts("sum_parts", whole, part);
  count_sent(stream, "reduce_scatter", bytes_of(part) * (group_.size() - 1), "sum_parts");
  if (!stream.is_meta()) sum(stream, part, whole);
}

void PeerMemory::exchange_pieces(Stream& stream, const std::vector<kernels::PieceCopy>& copies) {
  require<ShapeError>(!copies.empty() && copies.size() <= kernels::kMostPieceCopies, "exchange_pieces: 1 to ",
                      kernels::kMostPieceCopies, " tensors, got ", copies.size());
  const auto& [B, chunk, width] = copies.front().size;
  double bytes = 0;
  for (const kernels::PieceCopy& copy : copies) {
    require<ShapeError>(copy.to.contiguous() && copy.from.contiguous() && copy.to.dtype() == copy.from.dtype() &&
                            copy.from.dtype() == copies.front().from.dtype() && copy.size.B == B &&
                            copy.size.chunk == chunk,
                        "exchange_pieces: tensors must be contiguous, of one dtype and of the same sequences, got ",
                        copy.to.dtype(), " ", copy.to.shape(), " and ", copy.from.dtype(), " ", copy.from.shape());
    bytes += static_cast<double>(copy.size.elements() * size_of(copy.from.dtype()));
  }
  count_sent(stream, "all_to_all_equal", bytes * (group_.size() - 1), "exchange_pieces");
  if (!stream.is_meta() && bytes > 0) exchange(stream, copies);
}

}  // namespace witan
