// Peer memory between ranks of one host. Threads of a process use each other's addresses, which are valid on all of its
// GPUs; memory of another process (its window, and its arena, which holds receive buffers) is opened by handles
// (peer_window.h). Each rank closes opened memory once its own device is done, and its watch releases the window once
// the others have closed theirs (watch.h). A rank that fails, in any process, raises the failure of its world, which
// sets the abort word that the kernels of every rank's GPU poll.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/cuda/host_link.h"
#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/peer_window.h"
#include "witan/comm/cuda/waits.h"
#include "witan/comm/cuda/watch.h"
#include "witan/comm/peer_memory.h"
#include "witan/comm/peers/host_identity.h"

namespace witan::cuda {

// The identity of this process with its GPU.
HostIdentity identity_of(int device);
// Whether GPU `here` reaches the memory of another rank's, as far as is known without trying: one that this process
// does not see is tried out.
bool may_reach(int here, const HostIdentity& own, const HostIdentity& there, int device_there);

class PeerExchange : public PeerMemory {
 public:
  // All ranks of the group together. Null on all of them unless each GPU can reach all others' memory. `link`, `group`,
  // `watch` and the stream must outlive it; it must be destroyed when the stream is done, or was stopped.
  static std::unique_ptr<PeerExchange> make(Group& group, HostLink& link, Stream& stream, DeviceWatch& watch);
  ~PeerExchange() override;

  // The group's calls that each rank does alone in its peers' memory, by a kernel or, for pieces of any size, by
  // copies; others are NCCL's. All ranks say the same. Sums have the bits of the tree of comm/reduce.h.
  static bool takes(const Collective& call);
  void perform(Stream& stream, const Collective& call);

  // Work of this stream after it begins when all ranks' work before it is done. Agrees about nothing: for graphs.
  void barrier(Stream& stream) {
    order_.begin(stream);
    launch_barrier(stream, peers_);
    order_.end(stream);
  }

  std::string complaint() const;  // see Watched
  void stop() noexcept { words_.stop(); }

 private:
  enum class Call : int64_t { place, push, pull, reduce, gather, exchange };
  // Information that each rank sends to the others about itself and its memory.
  struct PeerInfo {
    int64_t window, device, proof;
    int64_t arena, arena_bytes;
    int64_t exported;  // whether there are handles
    MemoryHandle window_handle, arena_handle;
  };

  PeerExchange(Group& group, HostLink& link, Stream& stream, DeviceWatch& watch);
  // Whether this rank has found all others' memory.
  bool connect(const std::vector<HostIdentity>& identities);
  PeerInfo own_info(bool to_processes);
  void open(int rank, const PeerInfo& theirs);

  void place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
             int64_t capacity) override;
  void push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
            const Tensor& remote) override;
  void pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) override;
  void gather(Stream& stream, const Tensor& whole, const Tensor& part) override;
  void sum(Stream& stream, const Tensor& part, const Tensor& whole) override;
  void exchange(Stream& stream, const std::vector<kernels::PieceCopy>& copies) override;

  // Throws CommError, on every rank, unless `same` is equal on all; returns the details of all ranks, [n,
  // details.size()].
  std::vector<int64_t> agree(Call call, const std::vector<int64_t>& same, const std::vector<int64_t>& details);
  RankBuffers rank_buffers(Call call, const Rows& own);
  // All ranks' arrays that this one is an end of, in one block.
  PeerArrays arrays(Call call, const Tensor& own);
  // The reduction of elements [begin, begin + count) of all ranks' arrays `in`, and what this rank publishes of its
  // own.
  void reduce(Stream& stream, std::byte* out, PeerArrays in, int64_t begin, int64_t count, DType dtype, Reduce how);
  void publish(Stream& stream, PeerArrays to, const std::byte* from, int64_t begin, int64_t bytes);
  void copy_to_all(Stream& stream, const PeerArrays& to, const std::byte* from, int64_t bytes);
  void copy(Stream& stream, std::span<const OwnedTensor> pieces);
  int64_t address(const Tensor& tensor) const;        // for others; 0: none
  std::byte* found(int rank, int64_t address) const;  // another rank's, on this GPU
  unsigned most_blocks(const Stream& on) const { return &on == &link_.main() ? kMostBlocks : kMostBlocksBeside; }

  HostLink& link_;
  const int device_;
  std::byte* window_ = nullptr;  // the watch releases it
  WaitWords words_;
  CallOrder order_;
  Peers peers_{};
  bool exports_ = false;                               // some ranks are other processes
  std::vector<std::unique_ptr<MappedMemory>> opened_;  // of other processes
  int64_t shift_[kMostPeers] = {};                     // from a rank's own addresses to those that it has here
};

}  // namespace witan::cuda
