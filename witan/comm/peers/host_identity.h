// Where a rank's GPU is, and which ranks may reach each other's memory: threads of one process by its addresses,
// processes of one host by handles that they open.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace witan {

// Turns peer memory off where it is 0, so that rows go through NCCL as they do between hosts: the same for all ranks.
inline constexpr const char* kPeersVariable = "WITAN_COMM_PEERS";
// Whether that variable allows peer memory: unset and 1 do, 0 does not. Throws ConfigError for anything else.
bool peers_allowed();
bool peers_allowed(const char* value);  // null: unset

struct HostIdentity {
  static constexpr int64_t kNoGpu = -1;
  int64_t host = 0;      // of the kernel that runs and its PID namespace: handles mean nothing in another
  int64_t process = 0;   // within that
  int64_t gpu = kNoGpu;  // its PCI address, which is the same in every process, whichever GPUs each may see

  bool operator==(const HostIdentity&) const = default;
};

// By which ranks know that they see the memory that is meant.
int64_t random_number();

// Of this process, without a GPU.
HostIdentity identity_of_process();
int64_t pci_address(int domain, int bus, int device);

// How a rank may come to another one's memory; whether it can is found out by trying.
enum class PeerPath : uint8_t { none, address, handle };
PeerPath path_between(const HostIdentity& from, const HostIdentity& to);

// A number for each rank, from 0 on: ranks with the same number all reach each other. A rank joins the first ranks that
// it gets along with; one that reaches nobody is alone.
std::vector<int> islands_of(int ranks, const std::function<bool(int from, int to)>& reaches);

}  // namespace witan
