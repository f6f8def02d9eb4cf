#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream, std::function<void()> before_launch)
      : stream_(stream), before_launch_(std::move(before_launch)) {
    const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> recorded(graph, &cudaGraphDestroy);
    memsets_to_kernels(graph);
    cuda::check(cudaGraphInstantiate(&executable_, graph, 0), "instantiating a CUDA graph");
    cuda::check(cudaGraphUpload(executable_, stream_), "uploading a CUDA graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  void launch() override {
    before_launch_();
    cuda::check(cudaGraphLaunch(executable_, stream_), "launching a CUDA graph");
  }

 private:
  cudaStream_t stream_;
  std::function<void()> before_launch_;
  cudaGraphExec_t executable_ = nullptr;
};

// A non-blocking stream. The rank's thread keeps its device current, since kernels are launched on the current device.
//
// CUDA's copies between the device and pageable memory wait for the stream, and nothing can interrupt that wait, so
// copies go through pinned memory here.
class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(int device) {
    properties(device);
    cuda::check(cudaSetDevice(device), "choosing a device");
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    for (cudaEvent_t& free : free_)
      cuda::check(cudaEventCreateWithFlags(&free, cudaEventDisableTiming), "creating an event");
    cuda::check(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming), "creating an event");
  }
  ~CudaQueue() override {
    cudaEventDestroy(reached_);
    for (cudaEvent_t free : free_) cudaEventDestroy(free);
    if (pinned_) cudaFreeHost(pinned_);
    cudaStreamDestroy(stream_);
  }

  void follow(Queue& other) override {
    const auto ahead = static_cast<cudaStream_t>(other.native());
    cuda::check(cudaEventRecord(reached_, ahead), "recording an event");
    cuda::check(cudaStreamWaitEvent(stream_, reached_), "making a stream wait for another");
  }
  void write(std::byte* to, const void* from, int64_t bytes) override {
    require_no_capture("writing to the device");
    for (int64_t begin = 0; begin < bytes; begin += kSlotBytes) {
      const int64_t part = std::min(kSlotBytes, bytes - begin);
      const size_t slot = next_++ % kSlots;
      poll([&] { return cudaEventQuery(free_[slot]); });
      std::byte* staged = pinned() + static_cast<int64_t>(slot) * kSlotBytes;
      std::memcpy(staged, static_cast<const std::byte*>(from) + begin, static_cast<size_t>(part));
      copy_async(to + begin, staged, part, cudaMemcpyHostToDevice, "copying to the device");
      cuda::check(cudaEventRecord(free_[slot], stream_), "recording an event");
    }
  }
  void read(void* to, const std::byte* from, int64_t bytes) override {
    require_no_capture("reading from the device");
    constexpr int64_t kPart = kSlots * kSlotBytes;
    for (int64_t begin = 0; begin < bytes; begin += kPart) {
      const int64_t part = std::min(kPart, bytes - begin);
      // Earlier writes from these slots precede this copy in the stream.
      copy_async(pinned(), from + begin, part, cudaMemcpyDeviceToHost, "copying from the device");
      wait();
      std::memcpy(static_cast<std::byte*>(to) + begin, pinned(), static_cast<size_t>(part));
    }
    if (bytes == 0) wait();
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the device");
  }
  void copy_pinned(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDefault, "copying between the device and pinned memory");
  }
  void zero(std::byte* to, int64_t bytes) override {
    cuda::check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "zeroing device memory");
  }
  void wait() override {
    if (!poll_ && !one_core_) return cuda::check(cudaStreamSynchronize(stream_), "waiting for the device");
    poll([this] { return cudaStreamQuery(stream_); });
    if (poll_) poll_(0);
  }
  void check(const char* what) override { cuda::check(cudaGetLastError(), what); }
  void* native() override { return stream_; }

  bool records() const override { return true; }
  void begin_recording() override {
    // Captures only this thread's work: other ranks are threads, and continue to allocate.
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                "beginning the capture of a CUDA graph");
  }
  std::unique_ptr<Graph> end_recording() override {
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamEndCapture(stream_, &graph), "ending the capture of a CUDA graph");
    // A graph's launch waits for its previous one, and nothing can interrupt that wait. If the work depends on other
    // ranks it is waited for here.
    return std::make_unique<CudaGraph>(graph, stream_, [this] {
      if (poll_) poll([this] { return cudaStreamQuery(stream_); });
    });
  }

 private:
  static constexpr int64_t kSlots = 4, kSlotBytes = int64_t{4} << 20;

  // Allocates pinned memory when it is first needed. Freeing it waits for the whole device, on which a stopped rank may
  // still wait for others; so a side stream, which copies nothing to or from the host, must not have any.
  std::byte* pinned() {
    if (!pinned_)
      cuda::check(cudaHostAlloc(&pinned_, kSlots * kSlotBytes, cudaHostAllocDefault), "pinning host memory");
    return static_cast<std::byte*>(pinned_);
  }
  // Waits until query() reports completion, or poll_ throws.
  template <class Query>
  void poll(const Query& query) {
    using Clock = std::chrono::steady_clock;
    const double spin = one_core_ ? 0 : 1e-3;  // seconds; longer steps are not hurt by a late check
    const auto begin = Clock::now();
    for (cudaError_t status = query(); status != cudaSuccess; status = query()) {
      cudaGetLastError();  // clears "not ready", so that the next check does not report it
      const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
      // poll_ comes before the device's error: that may be due to memory of a process that has ended, which poll_
      // reports.
      if (poll_) poll_(waited);
      if (status != cudaErrorNotReady) cuda::check(status, "waiting for the device");
      if (waited >= spin) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void copy_async(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
    if (bytes > 0) cuda::check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_), what);
  }
  void require_no_capture(const char* what) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(stream_, &status), "asking whether a CUDA graph is being captured");
    require<DeviceError>(status == cudaStreamCaptureStatusNone, what,
                         " cannot be captured in a CUDA graph: every replay ",
                         "would copy the bytes that the host had at the capture");
  }

  // A launcher may have bound this process to one core (Open MPI's mpirun does with two processes). A thread that spins
  // there takes the core from the threads of CUDA, NCCL and the connections, for whose work it may be waiting.
  const bool one_core_ = usable_cores() == 1;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;  // the position of the followed stream
  void* pinned_ = nullptr;
  std::array<cudaEvent_t, kSlots> free_{};  // completes when the device has read the slot
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Queue> make_queue(int device) {
  return std::make_unique<CudaQueue>(device);
}

}  // namespace witan::cuda
