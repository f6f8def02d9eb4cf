#include "witan/comm/cuda/waits.h"

#include <new>

namespace witan::cuda {

WaitWords::WaitWords(DeviceWatch& watch, int device) : deadline_(watch.device_deadline_seconds()) {
  const OnDevice on(device);
  void* page = nullptr;
  check(cudaHostAlloc(&page, sizeof(Words), cudaHostAllocMapped | cudaHostAllocPortable),
        "allocating host memory that GPUs see");
  words_ = std::shared_ptr<Words>(new (page) Words, [](Words* words) { cudaFreeHost(words); });
  abort_ = std::shared_ptr<std::atomic<uint32_t>>(words_, &words_->abort);
  watch.failure()->watch(abort_);
}

Waits WaitWords::waits(uint32_t* failed) const {
  void* pinned = nullptr;
  check(cudaHostGetDevicePointer(&pinned, words_.get(), 0), "finding host memory on the GPU");
  auto* const words = static_cast<uint32_t*>(pinned);
  return {words, words + 1, failed, static_cast<uint64_t>(deadline_ * 1e9)};
}

std::optional<std::pair<Trouble, int>> WaitWords::trouble() const {
  const uint32_t word = words_->trouble.load();
  if ((word & kTroubled) == 0) return std::nullopt;
  return std::pair{static_cast<Trouble>((word & ~kTroubled) >> kTroubleBits),
                   static_cast<int>(word & ((1u << kTroubleBits) - 1))};
}

namespace {

// The graph that a stream's work is captured into; 0: none.
unsigned long long captured_graph(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long graph = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &graph), "asking which graph is captured");
  return status == cudaStreamCaptureStatusNone ? 0 : graph;
}

}  // namespace

CallOrder::CallOrder(Stream& main) : main_(main) {
  const OnDevice on(main.device().index);
  for (cudaEvent_t* event : {&last_, &beside_})
    check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
}

CallOrder::~CallOrder() {
  cudaEventDestroy(last_);
  cudaEventDestroy(beside_);
}

void CallOrder::begin(Stream& stream) {
  const cudaStream_t on = native(stream);
  if (last_stream_ == nullptr || last_stream_ == on || captured_graph(on) != last_graph_) return;
  check(cudaStreamWaitEvent(on, last_, 0), "waiting for the call before");
}

void CallOrder::end(Stream& stream) {
  const cudaStream_t on = native(stream);
  last_graph_ = captured_graph(on);
  last_stream_ = on;
  check(cudaEventRecord(last_, on), "recording an event");
  if (&stream != &main_ && last_graph_ == 0) check(cudaEventRecord(beside_, on), "recording an event");
}

bool CallOrder::done_within(double seconds) const noexcept {
  return cuda::done_within(native(main_), seconds) && cuda::done_within(beside_, seconds);
}

}  // namespace witan::cuda
