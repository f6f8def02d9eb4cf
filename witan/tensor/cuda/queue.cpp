#include "witan/base/error.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(status, "making a graph executable");
    cuda::check(cudaGraphUpload(executable_, stream_), "uploading a graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  void launch() override { cuda::check(cudaGraphLaunch(executable_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// A non-blocking stream. The rank's thread keeps its device current from here on: kernels are launched on it.
class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(int device) {
    properties(device);
    cuda::check(cudaSetDevice(device), "choosing a device");
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~CudaQueue() override { cudaStreamDestroy(stream_); }

  void write(std::byte* to, const void* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyHostToDevice, "copying to the device");
  }
  void read(void* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDeviceToHost, "copying from the device");
    wait();
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the device");
  }
  void zero(std::byte* to, int64_t bytes) override {
    cuda::check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "zeroing device memory");
  }
  void wait() override { cuda::check(cudaStreamSynchronize(stream_), "waiting for the device"); }
  void check(const char* what) override { cuda::check(cudaGetLastError(), what); }
  void* native() override { return stream_; }

  bool records() const override { return true; }
  void begin_recording() override {
    // Of this thread alone: other ranks are threads, and go on allocating.
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning to record a graph");
  }
  std::unique_ptr<Graph> end_recording() override {
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamEndCapture(stream_, &graph), "recording a graph");
    return std::make_unique<CudaGraph>(graph, stream_);
  }

 private:
  void copy_async(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
    if (bytes > 0) cuda::check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_), what);
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Queue> make_queue(int device) {
  return std::make_unique<CudaQueue>(device);
}

}  // namespace witan::cuda
