#include "witan/base/error.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

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
