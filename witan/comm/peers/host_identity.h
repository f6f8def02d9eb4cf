// Identifies a rank's host, process and GPU, and tells which ranks may reach each other's memory: threads of one
// process by addresses, processes of one host by handles that they open.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace witan {

// The memory through which ranks of one host may exchange data. The same on all ranks.
inline constexpr const char* kPeersVariable = "WITAN_COMM_PEERS";
enum class PeersAllowed : uint8_t {
  none,  // "0": NCCL carries everything, as between hosts
  host,  // "host": the host's memory, as if no GPU reached another's
  all,   // "1", or unset: each other's GPU memory where it can be reached, else the host's
};
// Throws ConfigError if the variable has any other value.
PeersAllowed peers_allowed();
PeersAllowed peers_allowed(const char* value);  // null: unset
const char* value_of(PeersAllowed allowed);     // of the variable

struct HostIdentity {
  static constexpr int64_t kNoGpu = -1;
  int64_t host = 0;      // the running kernel and its PID namespace, outside of which handles mean nothing
  int64_t process = 0;   // within the host
  int64_t gpu = kNoGpu;  // its PCI address, which is the same in every process, whichever GPUs each may see

  bool operator==(const HostIdentity&) const = default;
};

// A random number by which ranks recognize that they see the right memory.
int64_t random_number();

// The identity of this process, without a GPU.
HostIdentity identity_of_process();
int64_t pci_address(int domain, int bus, int device);

// How a rank may reach another one's memory. Only trying shows whether it can.
enum class PeerPath : uint8_t { none, address, handle };
PeerPath path_between(const HostIdentity& from, const HostIdentity& to);

// A number for each rank, counted from 0: ranks with the same number all reach each other. A rank joins the first
// island all of whose ranks it reaches; a rank that reaches no other is alone.
std::vector<int> islands_of(int ranks, const std::function<bool(int from, int to)>& reaches);

}  // namespace witan
