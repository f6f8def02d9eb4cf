#include "witan/comm/cuda/peer_exchange.h"

#include <new>

#include "witan/base/error.h"

namespace witan::cuda {
namespace {

// Whether GPU `here` reads and writes the memory of GPU `there`.
bool reaches(int here, int there) {
  if (here == there) return true;
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, here, there) == cudaSuccess && can != 0;
}

bool all_reach(HostLink& link, int device) {
  const int64_t usable = link.group().one_process() && link.group().size() <= kMostPeers;
  std::vector<int64_t> devices = link.all_gather({device});
  int64_t mine = usable;
  for (const int64_t there : devices)
    if (mine != 0) mine = reaches(device, static_cast<int>(there));
  for (const int64_t answer : link.all_gather({mine}))
    if (answer == 0) return false;
  return true;
}

void enable_access(int device, int there) {
  if (device == there) return;
  const cudaError_t status = cudaDeviceEnablePeerAccess(there, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(status, "opening a GPU's memory to another");
}

std::byte* address(const Tensor& tensor) {
  return tensor.defined() ? tensor.raw() : nullptr;
}

}  // namespace

std::unique_ptr<PeerExchange> PeerExchange::make(Group& group, HostLink& link, Stream& stream,
                                                 const DeviceWatch& watch) {
  if (!all_reach(link, stream.device().index)) return nullptr;
  std::unique_ptr<PeerExchange> made(new PeerExchange(group, link, stream, watch));
  made->connect();
  return made;
}

PeerExchange::PeerExchange(Group& group, HostLink& link, Stream& stream, const DeviceWatch& watch)
    : PeerMemory(group), link_(link), device_(stream.device().index), deadline_(watch.device_deadline_seconds()) {
  const OnDevice on(device_);
  void* page = nullptr;
  cuda::check(cudaHostAlloc(&page, sizeof(Words), cudaHostAllocMapped | cudaHostAllocPortable),
              "allocating host memory that GPUs see");
  words_ = std::shared_ptr<Words>(new (page) Words, [](Words* words) { cudaFreeHost(words); });
  abort_ = std::shared_ptr<std::atomic<uint32_t>>(words_, &words_->abort);
  watch.failure()->watch(abort_);

  window_ = allocate(device_, sizeof(Window));
  stream.queue()->zero(window_, sizeof(Window));
  stream.wait();
}

PeerExchange::~PeerExchange() {
  if (window_) release(device_, window_);
}

void PeerExchange::connect() {
  const OnDevice on(device_);
  const auto told = agree(Call::connect, {}, {reinterpret_cast<int64_t>(window_), device_});
  for (int rank = 0; rank < group().size(); ++rank) {
    const size_t at = static_cast<size_t>(rank) * 2;
    peers_.windows[rank] = reinterpret_cast<Window*>(told[at]);
    enable_access(device_, static_cast<int>(told[at + 1]));
  }
  peers_.rank = group().rank();
  peers_.size = group().size();
  void* words = nullptr;
  cuda::check(cudaHostGetDevicePointer(&words, words_.get(), 0), "finding host memory on the GPU");
  peers_.abort = static_cast<uint32_t*>(words);
  peers_.trouble = static_cast<uint32_t*>(words) + 1;
  peers_.deadline = static_cast<uint64_t>(deadline_ * 1e9);
}

std::string PeerExchange::complaint() const {
  const uint32_t word = words_->trouble.load();
  if ((word & kTroubled) == 0) return {};
  const auto trouble = static_cast<Trouble>((word & ~kTroubled) >> kTroubleBits);
  const int peer = link_.group().world_rank(static_cast<int>(word & ((1u << kTroubleBits) - 1)));
  if (trouble == Trouble::capacity)
    return cat("axis ", group().name(), ": more rows arrive at rank ", peer,
               " than its pool can hold: all expert-parallel ranks must have the same number of tokens");
  const std::string_view did = trouble == Trouble::counts   ? "did not send its counts"
                               : trouble == Trouble::coming ? "did not reach an exchange of rows"
                                                            : "did not finish an exchange of rows";
  return cat("axis ", group().name(), ": rank ", peer, " ", did, " within ", deadline_, " s; the GPU of rank ",
             link_.group().world_rank(group().rank()), " waited");
}

void PeerExchange::stop() noexcept {
  words_->abort.store(1);
}

std::vector<int64_t> PeerExchange::agree(Call call, const std::vector<int64_t>& same,
                                         const std::vector<int64_t>& told) {
  static constexpr std::string_view kNames[] = {"connect", "place_rows", "push_rows", "pull_rows"};
  std::vector<int64_t> mine = {static_cast<int64_t>(call), static_cast<int64_t>(same.size())};
  mine.insert(mine.end(), same.begin(), same.end());
  constexpr size_t kFields = 6;  // one length, whatever the call: ranks may be in different ones
  mine.resize(kFields);
  mine.insert(mine.end(), told.begin(), told.end());
  const size_t width = kFields + 2;
  mine.resize(width);
  const std::vector<int64_t> all = link_.all_gather(mine);

  std::vector<int64_t> out;
  for (int rank = 0; rank < group().size(); ++rank) {
    const auto theirs = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rank) * width);
    const auto says = [&](auto of) {
      std::string text(kNames[static_cast<size_t>(of[0])]);
      for (int64_t i = 0; i < of[1]; ++i) text += cat(i == 0 ? " of [" : ", ", of[2 + i], i + 1 == of[1] ? "]" : "");
      return text;
    };
    require<CommError>(std::equal(theirs, theirs + kFields, all.begin()), "axis ", group().name(), ": rank ",
                       link_.group().world_rank(rank), " calls ", says(theirs), ", expected as on rank ",
                       link_.group().world_rank(0), ": ", says(all.begin()));
    out.insert(out.end(), theirs + kFields, theirs + static_cast<ptrdiff_t>(kFields + told.size()));
  }
  return out;
}

Pools PeerExchange::pools(Call call, const Rows& own) {
  const auto all =
      agree(call,
            {own.rows.defined() ? own.rows.size(0) : own.weights.size(0), own.rows.defined() ? row_bytes(own.rows) : 0,
             own.weights.defined() ? 1 : 0},
            {reinterpret_cast<int64_t>(address(own.rows)), reinterpret_cast<int64_t>(address(own.weights))});
  Pools pools{};
  for (int rank = 0; rank < group().size(); ++rank) {
    const size_t at = static_cast<size_t>(rank) * 2;
    pools.rows[rank] = reinterpret_cast<std::byte*>(all[at]);
    pools.weights[rank] = reinterpret_cast<std::byte*>(all[at + 1]);
  }
  return pools;
}

void PeerExchange::place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
                         int64_t capacity) {
  agree(Call::place, {counts.elements(), capacity}, {});
  launch_place(stream, peers_, groups, remote, counts, capacity);
}

void PeerExchange::push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
                        const Tensor& remote) {
  launch_push(stream, peers_, pools(Call::push, to), from, source, topk, remote, most_blocks(stream));
}

void PeerExchange::pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) {
  launch_pull(stream, peers_, to, pools(Call::pull, from), slot, remote, most_blocks(stream));
}

}  // namespace witan::cuda
