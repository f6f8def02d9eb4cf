#include "witan/comm/peers/host_identity.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

// The boot of the kernel; if it is unknown, the host's name.
std::string name_of_kernel() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (std::getline(file, boot) && !boot.empty()) return boot;
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string pid_namespace() {
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return length > 0 ? name.data() : "";
}

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(hash64(text.data(), text.size()));
}

}  // namespace

PeersAllowed peers_allowed(const char* value) {
  if (value == nullptr) return PeersAllowed::all;
  for (const PeersAllowed allowed : {PeersAllowed::none, PeersAllowed::host, PeersAllowed::all})
    if (std::string_view(value) == value_of(allowed)) return allowed;
  throw ConfigError(cat("environment: ", kPeersVariable, " = \"", value, "\" must be 0, 1 or host"));
}

PeersAllowed peers_allowed() {
  return peers_allowed(std::getenv(kPeersVariable));
}

const char* value_of(PeersAllowed allowed) {
  return allowed == PeersAllowed::none ? "0" : allowed == PeersAllowed::host ? "host" : "1";
}

int64_t random_number() {
  std::random_device random;
  return static_cast<int64_t>(uint64_t{random()} << 32 | random());
}

HostIdentity identity_of_process() {
  // Process ids are reused, and hosts started from one image may assign the same ones. Children that are forked have
  // this number too, but another process number.
  static const int64_t nonce = random_number();
  return {.host = hash_of(name_of_kernel() + '\n' + pid_namespace()), .process = hash_of(cat(::getpid(), ' ', nonce))};
}

int64_t pci_address(int domain, int bus, int device) {
  return int64_t{domain} << 16 | int64_t{bus} << 8 | device;
}

PeerPath path_between(const HostIdentity& from, const HostIdentity& to) {
  if (from.gpu == HostIdentity::kNoGpu || to.gpu == HostIdentity::kNoGpu || from.host != to.host) return PeerPath::none;
  return from.process == to.process ? PeerPath::address : PeerPath::handle;
}

std::vector<int> islands_of(int ranks, const std::function<bool(int from, int to)>& reaches) {
  std::vector<std::vector<int>> islands;
  std::vector<int> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto home = std::ranges::find_if(islands, [&](const std::vector<int>& island) {
      return std::ranges::all_of(island, [&](int other) { return reaches(rank, other) && reaches(other, rank); });
    });
    of_rank.push_back(static_cast<int>(home - islands.begin()));
    if (home == islands.end())
      islands.push_back({rank});
    else
      home->push_back(rank);
  }
  return of_rank;
}

}  // namespace witan
