// Peer memory between ranks that are threads of one process, where an address on one GPU is valid on all.
#pragma once

#include <memory>
#include <string>

#include "witan/comm/cuda/host_link.h"
#include "witan/comm/cuda/peer_kernels.h"
#include "witan/comm/cuda/watch.h"
#include "witan/comm/threads/peer_memory.h"

namespace witan::cuda {

class PeerExchange : public PeerMemory {
 public:
  // All ranks of the group together. Null on all of them unless each GPU can reach all others' memory. `link`, `group`
  // and the stream must outlive it; it must be destroyed when the stream is done.
  static std::unique_ptr<PeerExchange> make(Group& group, HostLink& link, Stream& stream, const DeviceWatch& watch);
  ~PeerExchange() override;

  // Work of this stream after it begins when all ranks' work before it is done. Agrees about nothing: for graphs.
  void barrier(Stream& stream) { launch_barrier(stream, peers_); }

  std::string complaint() const;  // see Watched
  void stop() noexcept;

 private:
  // On the host, seen by the device.
  struct Words {
    std::atomic<uint32_t> abort{0}, trouble{0};
  };
  enum class Call : int64_t { connect, place, push, pull };

  PeerExchange(Group& group, HostLink& link, Stream& stream, const DeviceWatch& watch);
  void connect();

  void place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
             int64_t capacity) override;
  void push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
            const Tensor& remote) override;
  void pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) override;

  // Throws CommError, on every rank, unless all say the same; returns what each tells besides, [n, told.size()].
  std::vector<int64_t> agree(Call call, const std::vector<int64_t>& same, const std::vector<int64_t>& told);
  Pools pools(Call call, const Rows& own);
  unsigned most_blocks(const Stream& on) const { return &on == &link_.main() ? kMostBlocks : kMostBlocksBeside; }

  HostLink& link_;
  const int device_;
  const double deadline_;
  std::byte* window_ = nullptr;
  std::shared_ptr<Words> words_;
  std::shared_ptr<std::atomic<uint32_t>> abort_;  // of words_
  Peers peers_{};
};

}  // namespace witan::cuda
