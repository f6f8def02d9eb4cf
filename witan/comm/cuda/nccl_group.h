// A group whose ranks have a GPU each, connected by NCCL.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "witan/comm/cuda.h"
#include "witan/comm/cuda/host_exchange.h"
#include "witan/comm/cuda/host_link.h"
#include "witan/comm/cuda/peer_exchange.h"
#include "witan/comm/cuda/watch.h"

namespace witan::cuda {

// The functions of NCCL that are used. The library is loaded when it is first needed.
//
// NVLink multicast stays off unless NCCL_NVLS_ENABLE asks for it: a program that dies while it uses it can leave a host
// without its GPUs.
struct Nccl {
  Nccl();
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclReduce) reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  std::string path;  // where it was found
  int version = 0;   // 22809 is 2.28.9
};
// Throws DeviceError when it cannot be loaded or is too old.
const Nccl& nccl_calls();

class NcclGroup : public Group, public Watched {
 public:
  // All ranks together.
  NcclGroup(std::unique_ptr<HostGroup> host, Stream& stream, std::shared_ptr<DeviceWatch> watch,
            const GroupOptions& options);
  ~NcclGroup() override;

  // Each rank with each other, by a word that nobody reads. All ranks together. Apart from the constructor, whose group
  // nobody would take from the watch again if this throws.
  void connect_pairs(Stream& stream);

  PeerMemory* peers() override { return peers_in_graphs_ ? nullptr : peers_.get(); }

  std::string complaint(double waited_seconds) override;
  void stop() noexcept override;
  void abort() noexcept override;

 private:
  void perform(Stream& stream, const Collective& call) override;
  // An all_to_all whose counts the host does not know, as ranks agree on it: with none.
  Collective without_counts(Collective call);
  // Whether this call goes through peer memory; all ranks say the same.
  bool goes_to_peers(const Collective& call, bool captured) const;

  void reduce(Stream& stream, const Collective& call);
  void all_reduce_in_tree(Stream& stream, const Collective& call);
  void scatter_in_tree(Stream& stream, const Collective& call);
  void all_gather_uneven(Stream& stream, const Collective& call);
  void exchange(Stream& stream, const Collective& call);
  void exchange_equal(Stream& stream, const Collective& call);
  void barrier(Stream& stream);

  void check(ncclResult_t result, const char* what);
  // Elements of all slices of a piece that fits into scratch memory: one for each rank.
  int64_t slice_of(int64_t elements, DType dtype) const;
  // Sends and receives between these calls go at once.
  template <class Body>
  void together(const char* what, const Body& body);
  void send(const std::byte* from, int64_t bytes, int peer, cudaStream_t stream);
  void recv(std::byte* to, int64_t bytes, int peer, cudaStream_t stream);

  static constexpr double kCompareAfterSeconds = 0.5;  // that the device is waited for; then calls are compared

  HostLink link_;
  std::shared_ptr<DeviceWatch> watch_;
  const Nccl& nccl_;
  const Sums sums_;
  const bool collectives_in_peers_, peers_in_graphs_;
  const int device_;
  ncclComm_t communicator_ = nullptr;  // null once aborted
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<HostExchange> host_exchange_;  // with PeerAccess::host
};

}  // namespace witan::cuda
