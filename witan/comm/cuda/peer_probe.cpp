// Tries out which ranks reach each other's memory, before a run is planned by it.
#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/cuda.h"
#include "witan/comm/cuda/peer_exchange.h"
#include "witan/comm/peers/host_words.h"
#include "witan/comm/texts.h"

namespace witan::cuda {
namespace {

// Memory that others try to reach, with a number in it that proves that they have.
struct Sample {
  explicit Sample(int of) : device(of), memory(allocate(of, kSharedBlock)) {
    copy_in(device, memory, &number, sizeof number);
  }
  ~Sample() { release(device, memory); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  int device;
  std::byte* memory;
  int64_t number = random_number();
};

// Information that each rank sends to the others about itself and its sample.
struct PeerInfo {
  HostIdentity identity;
  int64_t device, number, exported;
  MemoryHandle handle;
};
constexpr size_t kWords = sizeof(PeerInfo) / sizeof(int64_t);
static_assert(sizeof(PeerInfo) % sizeof(int64_t) == 0 && std::is_trivially_copyable_v<PeerInfo>);

std::vector<PeerInfo> gather(HostGroup& host, const PeerInfo& own) {
  std::vector<int64_t> words(kWords);
  std::memcpy(words.data(), &own, sizeof own);
  words = gather_words(host, words);
  std::vector<PeerInfo> all(static_cast<size_t>(host.size()));
  for (size_t rank = 0; rank < all.size(); ++rank)
    std::memcpy(static_cast<void*>(&all[rank]), words.data() + rank * kWords, sizeof all[rank]);
  return all;
}

// Empty: this rank's GPU reads that of `there`.
std::string why_apart(const Sample& own, const PeerInfo& here, const PeerInfo& there) {
  if (!may_reach(own.device, here.identity, there.identity, static_cast<int>(there.device)))
    return "their GPUs have no way to each other's memory";
  if (path_between(here.identity, there.identity) == PeerPath::address) return "";
  if (there.exported == 0) return "its memory cannot be exported to other processes";
  try {
    const MappedMemory opened(own.device, there.handle);
    int64_t number = 0;
    copy_out(own.device, &number, opened.base(), sizeof number);
    return number == there.number ? "" : "its handle opens other memory";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

// The first text that a rank has, on rank 0.
std::string first_of(HostGroup& host, const std::string& text) {
  ThreadPool alone(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 20), alone);
  for (const std::string& one : gather_texts(host, stream, text))
    if (!one.empty()) return one;
  return "";
}

}  // namespace

PeerIslands find_peers(HostGroup& host, int device) {
  const OnDevice on(device);
  const Sample sample(device);
  PeerInfo own{identity_of(device), device, sample.number, 0, {}};
  std::string why;
  try {
    own.handle = export_memory(device, sample.memory);
    own.exported = 1;
  } catch (const DeviceError& error) {
    why = error.what();
  }
  const std::vector<PeerInfo> all = gather(host, own);
  const auto words = HostWords::make(host);  // by which ranks say that they have stopped (watch.h)
  constexpr int kBits = 62;                  // of a word
  std::vector<int64_t> reached(static_cast<size_t>(host.size() / kBits + 1));
  for (int rank = 0; rank < host.size(); ++rank) {
    const PeerInfo& there = all[static_cast<size_t>(rank)];
    if (path_between(own.identity, there.identity) == PeerPath::none) continue;
    const std::string reason = rank == host.rank() ? ""
                               : words == nullptr
                                   ? "the ranks of the host cannot share a page of memory (memfd_create(2))"
                                   : why_apart(sample, own, there);
    if (reason.empty())
      reached[static_cast<size_t>(rank / kBits)] |= int64_t{1} << rank % kBits;
    else if (why.empty())
      why = cat("rank ", host.world_rank(host.rank()), " does not reach rank ", host.world_rank(rank), ": ", reason);
  }
  const size_t width = reached.size();
  const std::vector<int64_t> matrix = gather_words(host, reached);  // all have closed what they opened
  const auto reaches = [&](int from, int to) {
    return (matrix[static_cast<size_t>(from) * width + static_cast<size_t>(to / kBits)] >> to % kBits & 1) != 0;
  };
  const std::vector<int64_t> shares = gather_words(host, {words != nullptr});
  const auto share = [&](int from, int to) {
    const auto of = [](int rank) { return static_cast<size_t>(rank); };
    return from == to ||
           (all[of(from)].identity.host == all[of(to)].identity.host && shares[of(from)] != 0 && shares[of(to)] != 0);
  };
  return {islands_of(host.size(), reaches), islands_of(host.size(), share), first_of(host, why)};
}

}  // namespace witan::cuda
