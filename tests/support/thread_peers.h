// Peer memory among thread-ranks on the CPU, as comm/peer_memory.h describes it, in plain loops: the reference for
// GPUs.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/comm/peer_memory.h"

namespace witan::testing {

class ThreadPeers : public PeerMemory {
 public:
  // Memory of `owner`; communicates through a group of the same ranks.
  ThreadPeers(Group& owner, Group& through) : PeerMemory(owner), through_(through) {}

 private:
  struct Pool {
    std::byte *rows, *weights;
  };

  void place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
             int64_t capacity) override {
    const int64_t R = through_.size(), E = counts.elements(), local = E / R, me = through_.rank();
    const Tensor all = stream.empty({R * E}, DType::i64);
    through_.all_gather(stream, all, counts);
    const auto rows = [&](int64_t rank, int64_t e) { return all.data<int64_t>()[rank * E + e]; };
    std::vector<int64_t> places;
    for (int64_t e = 0; e < E; ++e) {
      const int64_t owner = e / local;
      int64_t row = 0;  // rows of the owner's buffer before expert e
      for (int64_t before = owner * local; before < e; ++before)
        for (int64_t rank = 0; rank < R; ++rank) row += rows(rank, before);
      if (owner == me) groups.begin.data<int64_t>()[e % local] = row;
      if (owner == me) groups.count.data<int64_t>()[e % local] = 0;
      for (int64_t rank = 0; rank < R; ++rank) {
        for (int64_t i = 0; rank == me && i < rows(rank, e); ++i) places.push_back(owner * kRank + row + i);
        if (owner == me) {
          groups.source_begin.data<int64_t>()[rank * local + e % local] = row;
          groups.source_count.data<int64_t>()[rank * local + e % local] = rows(rank, e);
          groups.count.data<int64_t>()[e % local] += rows(rank, e);
        }
        row += rows(rank, e);
      }
      require<CommError>(row <= capacity, "a pool of ", capacity, " rows is too small");
    }
    for (int64_t i = 0; i < remote.elements(); ++i)
      remote.data<int64_t>()[i] = i < static_cast<int64_t>(places.size()) ? places[static_cast<size_t>(i)] : -1;
  }

  void push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
            const Tensor& remote) override {
    const std::vector<Pool> pools = pools_of(stream, to);
    for (int64_t i = 0; i < remote.elements(); ++i) {
      const int64_t assignment = source.data<int64_t>()[i], place = remote.data<int64_t>()[i];
      if (assignment < 0 || place < 0) continue;
      const auto copy = [&](std::byte* pool, const Tensor& own, int64_t row) {
        const int64_t bytes = row_bytes(own);
        std::memcpy(pool + place % kRank * bytes, own.raw() + row * bytes, static_cast<size_t>(bytes));
      };
      const Pool& there = pools[static_cast<size_t>(place / kRank)];
      if (from.rows.defined()) copy(there.rows, from.rows, assignment / topk);
      if (from.weights.defined()) copy(there.weights, from.weights, assignment);
    }
    through_.barrier(stream);
  }

  void pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) override {
    const std::vector<Pool> pools = pools_of(stream, from);
    const auto place_of = [&](int64_t assignment) {
      const int64_t row = slot.data<int64_t>()[assignment];
      return row < 0 ? -1 : remote.data<int64_t>()[row];
    };
    if (to.rows.defined())
      dispatch_floating(to.rows.dtype(), [&]<class T>() {
        using A = Accumulator<T>;
        const int64_t tokens = to.rows.size(0), D = to.rows.size(1), K = tokens ? slot.elements() / tokens : 0;
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t d = 0; d < D; ++d) {
            A sum = 0;
            for (int64_t k = 0; k < K; ++k)
              if (const int64_t place = place_of(t * K + k); place >= 0)
                sum += A(
                    reinterpret_cast<const T*>(pools[static_cast<size_t>(place / kRank)].rows)[place % kRank * D + d]);
            to.rows.data<T>()[t * D + d] = T(sum);
          }
      });
    if (to.weights.defined())
      dispatch_floating(to.weights.dtype(), [&]<class T>() {
        for (int64_t i = 0; i < slot.elements(); ++i) {
          const int64_t place = place_of(i);
          to.weights.data<T>()[i] =
              place < 0 ? T(0.0f)
                        : reinterpret_cast<const T*>(pools[static_cast<size_t>(place / kRank)].weights)[place % kRank];
        }
      });
    through_.barrier(stream);
  }

  void gather(Stream& stream, const Tensor& whole, const Tensor& part) override {
    const int64_t n = through_.size(), A = part.size(0), bytes = row_bytes(part);
    const Tensor all = stream.empty({n * A, part.size(1)}, part.dtype());
    through_.all_gather(stream, all, part);
    for (int64_t rank = 0; rank < n; ++rank)
      for (int64_t a = 0; a < A; ++a)
        std::memcpy(whole.raw() + (a * n + rank) * bytes, all.raw() + (rank * A + a) * bytes,
                    static_cast<size_t>(bytes));
  }

  void sum(Stream& stream, const Tensor& part, const Tensor& whole) override {
    const int64_t n = through_.size(), A = part.size(0), bytes = row_bytes(part);
    const Tensor packed = stream.empty({n * A, part.size(1)}, part.dtype());
    for (int64_t rank = 0; rank < n; ++rank)
      for (int64_t a = 0; a < A; ++a)
        std::memcpy(packed.raw() + (rank * A + a) * bytes, whole.raw() + (a * n + rank) * bytes,
                    static_cast<size_t>(bytes));
    through_.reduce_scatter(stream, part, packed);
  }

  void exchange(Stream& stream, const std::vector<kernels::PieceCopy>& copies) override {
    for (const kernels::PieceCopy& copy : copies) {
      const std::vector<Pool> there = pools_of(stream, {copy.to, {}});
      const auto& [B, chunk, width] = copy.size;
      const int64_t item = size_of(copy.from.dtype());
      for (int64_t rank = 0; rank < through_.size(); ++rank)
        for (int64_t b = 0; b < B; ++b)
          for (int64_t row = 0; row < 2 * chunk; ++row) {
            const auto at = [&](const kernels::PieceLayout& in, int64_t piece) {
              const int64_t first = in.first_row(piece, row >= chunk);
              return (in.begin(piece) + b * in.sequence + (first + row % chunk) * in.row) * item;
            };
            std::memcpy(there[static_cast<size_t>(rank)].rows + at(copy.to_layout, through_.rank()),
                        copy.from.raw() + at(copy.from_layout, rank), static_cast<size_t>(width * item));
          }
    }
    through_.barrier(stream);
  }

  // The receive buffers of all ranks; returns when all ranks have arrived.
  std::vector<Pool> pools_of(Stream& stream, const Rows& own) {
    const Tensor mine = stream.empty({2}, DType::i64), all = stream.empty({2 * through_.size()}, DType::i64);
    mine.data<int64_t>()[0] = own.rows.defined() ? reinterpret_cast<int64_t>(own.rows.raw()) : 0;
    mine.data<int64_t>()[1] = own.weights.defined() ? reinterpret_cast<int64_t>(own.weights.raw()) : 0;
    through_.all_gather(stream, all, mine);
    std::vector<Pool> pools;
    for (int rank = 0; rank < through_.size(); ++rank)
      pools.push_back({reinterpret_cast<std::byte*>(all.data<int64_t>()[2 * rank]),
                       reinterpret_cast<std::byte*>(all.data<int64_t>()[2 * rank + 1])});
    return pools;
  }

  Group& through_;
};

// A group that offers only peer memory.
class PeeredGroup : public Group {
 public:
  explicit PeeredGroup(Group& group) : Group(group.size(), group.rank(), group.name()), peers_(*this, group) {}
  PeerMemory* peers() override { return &peers_; }

 private:
  void perform(Stream&, const Collective& call) override {
    throw CommError(cat(name_of(call.kind), " is not needed where ranks reach each other's memory"));
  }

  ThreadPeers peers_;
};

}  // namespace witan::testing
