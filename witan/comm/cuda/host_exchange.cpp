#include "witan/comm/cuda/host_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "witan/base/error.h"

namespace witan::cuda {
namespace {

int64_t ring_bytes(int ranks) {
  return static_cast<int64_t>(sizeof(Ring)) * ranks * (ranks - 1) * rings_of_pair(ranks);
}

}  // namespace

std::unique_ptr<HostExchange> HostExchange::make(HostLink& link, Stream& stream, DeviceWatch& watch) {
  const int ranks = link.group().size();
  if (ranks > kMostRingRanks) return nullptr;
  auto pages = HostPages::make(link.group(), ring_bytes(ranks));
  const bool together = pages != nullptr && std::ssize(pages->ranks()) == ranks;
  std::unique_ptr<HostExchange> made(new HostExchange(link, stream, watch, std::move(pages)));
  if (together) made->touch_own_rings();
  link.all_gather({0});
  const std::vector<int64_t> answers = link.all_gather({together && made->reaches_pages()});
  return std::ranges::count(answers, 0) == 0 ? std::move(made) : nullptr;
}

HostExchange::HostExchange(HostLink& link, Stream& stream, DeviceWatch& watch, std::unique_ptr<HostPages> pages)
    : link_(link),
      device_(stream.device().index),
      pages_(std::move(pages)),
      words_(watch, device_),
      order_(link.main()) {
  const OnDevice on(device_);
  std::byte* memory = allocate(device_, sizeof(RingProgress));
  watch.keep(memory);
  stream.queue()->zero(memory, sizeof(RingProgress));
  stream.wait();
  progress_ = reinterpret_cast<RingProgress*>(memory);
}

void HostExchange::touch_own_rings() {
  const int64_t own = pages_->bytes() / link_.group().size();
  std::memset(pages_->base() + link_.group().rank() * own, 0, static_cast<size_t>(own));
}

bool HostExchange::reaches_pages() {
  const OnDevice on(device_);
  void* found = nullptr;
  registered_ =
      cudaHostRegister(pages_->base(), static_cast<size_t>(pages_->bytes()), cudaHostRegisterMapped) == cudaSuccess;
  if (!registered_ || cudaHostGetDevicePointer(&found, pages_->base(), 0) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  const int ranks = link_.group().size();
  rings_ = {static_cast<Ring*>(found),       progress_, link_.group().rank(), ranks, rings_of_pair(ranks),
            words_.waits(&progress_->failed)};
  return true;
}

HostExchange::~HostExchange() {
  // Work that still runs would access memory that is gone. Then the memory stays until the process ends.
  if (!order_.done_within(kPartingSeconds)) {
    [[maybe_unused]] const HostPages* left = pages_.release();
    return;
  }
  const OnDevice on(device_);
  if (registered_ && cudaHostUnregister(pages_->base()) != cudaSuccess) cudaGetLastError();
}

void HostExchange::perform(Stream& stream, const Collective& call) {
  const bool counted = call.kind == Collective::Kind::all_to_all;
  const int64_t size = rings_.size;
  // Equal parts travel as rows of their own.
  const RingRows rows{call.in.raw(),
                      call.out.raw(),
                      counted ? call.in.size(0) : size,
                      counted ? call.out.size(0) : size,
                      counted ? row_bytes(call.in) : call.in.bytes() / size,
                      counted ? call.send_counts.data<int64_t>() : nullptr,
                      counted ? call.recv_counts.data<int64_t>() : nullptr,
                      1};
  order_.begin(stream);
  launch_ring_exchange(stream, rings_, rows);
  order_.end(stream);
}

std::string HostExchange::complaint() const {
  const auto said = words_.trouble();
  if (!said) return {};
  const auto [trouble, waited_for] = *said;
  const HostGroup& group = link_.group();
  const int peer = group.world_rank(waited_for);
  if (trouble == Trouble::capacity)
    return cat("axis ", group.name(), ": rank ", peer, " sends or expects more rows than its tensors hold");
  return cat("axis ", group.name(), ": rank ", peer,
             trouble == Trouble::sending ? " did not send its rows" : " did not take the rows for it",
             " through the host's memory within ", words_.deadline_seconds(), " s; the GPU of rank ",
             group.world_rank(group.rank()), " waited");
}

}  // namespace witan::cuda
