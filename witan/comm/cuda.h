// Groups whose tensors are on GPUs, one GPU per rank: host groups agree on every call, NCCL executes it.
//
// Calls are ordered by their stream, run asynchronously, and may be captured into a graph, except for all_to_all, which
// reads its counts on the host (DeviceError during a capture; it waits otherwise). With PeerAccess::host it leaves them
// on the device and can be captured; counts that contradict each other are a CommError at the deadline. Ranks agree on
// a captured call when it is captured: all must start its replays in the same order, and graphs must be destroyed
// before their groups.
//
// When a rank fails, an AbortedError stops ranks that wait for their GPU: their communicators are aborted and
// device-side waits end. A wait beyond the world's deadline throws a CommError.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/comm/peer_memory.h"

namespace witan {

// How devices sum floating values. fast: float32 and float64 as NCCL does, in an order that depends on its choice of
// algorithm, the same bits on every rank. in_tree: in the binary tree of comm/reduce.h, as the CPU. bfloat16 is always
// summed in float32 and in the tree.
enum class Sums : uint8_t { fast, in_tree };
struct GroupOptions {
  Sums sums = Sums::fast;
  PeerAccess peers = PeerAccess::none;
  // Peer memory, where there is any, is for recorded calls alone, which agree on its addresses once; a group whose
  // ranks would have to do so before every call leaves the others to NCCL, and offers no Group::peers().
  bool peers_in_graphs = false;
  // NCCL connects two ranks in the first call in which one sends to the other, which allocates, and may wait for all
  // that a process has running on its GPUs. Of a group that sends while another is at work, it does so at once.
  bool connect_now = false;
};

namespace cuda {

class DeviceWatch;

// Looks after the waits of a rank on its stream, for as long as a group holds it. The stream must outlive it, and so
// must the arena of the stream. All ranks of `host` together.
std::shared_ptr<DeviceWatch> watch(Stream& stream, HostGroup& host);

// The ranks of a world, threads or processes, that reach each other's memory, as found by trying.
struct PeerIslands {
  std::vector<int> of_rank;              // those with the same number all reach each other
  std::vector<int> sharing_host_memory;  // those with the same number have memory of their host together
  std::string why;                       // on rank 0: what kept processes of one host apart, if anything did
};
// All ranks of `host` together, each with its GPU.
PeerIslands find_peers(HostGroup& host, int device);

// The rank's end of the group of the same ranks on GPUs; all ranks call this together, host ranks in their order. A
// group of one rank is `host` itself. Throws DeviceError when NCCL cannot be loaded, or ranks with PeerAccess::host
// share no memory of their host; CommError when it cannot connect.
std::unique_ptr<Group> make_group(std::unique_ptr<HostGroup> host, Stream& stream, std::shared_ptr<DeviceWatch> watch,
                                  const GroupOptions& options);

}  // namespace cuda
}  // namespace witan
