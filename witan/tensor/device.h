// Devices and streams: where tensors are stored and kernels run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "witan/tensor/dtype.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/shape.h"

namespace witan {

class Arena;
class KernelObserver;
class LaunchObserver;
class Tensor;
class ThreadPool;
struct CallKind;
struct CallShape;
struct TraceContext;
enum class MemoryTag : uint8_t;

// meta computes nothing, but allocates, counts and communicates exactly like the device it stands for.
struct Device {
  enum class Kind : uint8_t { cpu, cuda, meta };
  Kind kind = Kind::cpu;
  int index = 0;
  Kind stands_for = Kind::cpu;  // of a meta device
  bool operator==(const Device&) const = default;
  // The device with the same workspaces and code paths: for a meta device the one it stands for.
  Kind computes_as() const { return kind == Kind::meta ? stands_for : kind; }
};
std::ostream& operator<<(std::ostream& out, Device device);  // "cpu", "cuda:1", "meta"

// The cost of a kernel: multiply-adds count as two FLOPs, bytes as read plus written once.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  // measured time; 0 unless the stream times kernels
  double calls = 0;    // the number of calls in this sum; 0: a single call, not summed yet
  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes += other.bytes;
    seconds += other.seconds;
    calls += other.calls;
    return *this;
  }
};

// An ordered queue of work on one device, with the arena of its tensors and the threads that run it. CPU streams run
// inline; CUDA streams run asynchronously, and the host only waits in read() and wait(); meta streams only count. Used
// by one thread: its rank's.
class Stream {
 public:
  // CUDA kernels may use this much scratch(), including libraries' workspaces. It is charged to the arena as workspace.
  static constexpr int64_t kScratchBytes = int64_t{256} << 20;

  // A CUDA stream needs a device below cuda::devices(); throws DeviceError.
  Stream(Device device, std::shared_ptr<Arena> arena, ThreadPool& pool, int64_t scratch_bytes = kScratchBytes);
  // A side stream of a rank's main stream, which must outlive it, for work that needs less scratch. It shares the main
  // stream's trace context and observer. Memory is reused in the order of the main stream, so temporary tensors must
  // only be used there, unless an Arena::Hold lives (autograd/concurrent.h).
  Stream(Stream& main, int64_t scratch_bytes);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  bool is_meta() const { return device_.kind == Device::Kind::meta; }
  bool is_cuda() const { return device_.kind == Device::Kind::cuda; }
  // Whether memory is allocated as on a GPU: on CUDA, and on a meta device that stands for it.
  bool plans_for_cuda() const { return device_.computes_as() == Device::Kind::cuda; }
  Arena& arena() { return *arena_; }
  ThreadPool& pool() { return pool_; }

  // Uninitialised memory from the arena; `tag` is the kind of memory it is charged to. Throws OutOfMemoryError.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag);
  Tensor empty(const Shape& shape, DType dtype);  // an activation
  Tensor empty_like(const Tensor& other);
  Tensor zeros(const Shape& shape, DType dtype);
  Tensor zeros(const Shape& shape, DType dtype, MemoryTag tag);

  // Copies between host memory and contiguous tensors, in stream order; no-ops on the meta device. `from` may be reused
  // when write() returns; read() waits for all earlier work.
  void write(const Tensor& to, const void* from);
  void read(void* to, const Tensor& from);
  void copy(const Tensor& to, const Tensor& from);  // of equal size, both contiguous and on this device
  // The same between this device and pinned host memory, in either direction, in stream order and without waiting.
  void copy_pinned(const Tensor& to, const Tensor& from);
  void zero(const Tensor& to);
  void wait();
  // Work queued here from now on starts when all work queued so far on `other`, of the same device, is done.
  void follow(Stream& other);
  std::shared_ptr<Arena> shared_arena() const { return arena_; }
  Queue* queue() { return queue_.get(); }  // null on the meta device

  // Device memory that is valid until the next kernel of this stream starts; null on the meta device. At most the
  // constructor's bytes, aligned to 512. Only on CUDA.
  std::byte* scratch(int64_t bytes);

  // Costs are summed per (part, kernel). Parts have names that users know: "attention", "experts", "head" …
  void count(const char* kernel, const Cost& cost);
  void count(const char* kernel, const Cost& cost, const CallShape& shape);
  // Records an exchange of a group, whose costs the group counts, as part of this stream's work.
  void count_exchange(const std::string& group, std::string_view operation, double bytes, int ranks);
  std::string set_part(std::string part) { return std::exchange(part_, std::move(part)); }  // returns the previous one
  const std::map<std::string, std::map<std::string, Cost>>& costs() const { return costs_; }
  double flops() const;
  void reset_costs() { costs_.clear(); }
  // Records calls by kind into `calls`, also exchanges on side streams; kernels there are recorded when the main stream
  // counts them. Null stops recording.
  void record_calls(std::map<CallKind, Cost>* calls) { calls_ = calls; }
  // Makes costs include the time of each kernel, at the price of two clock reads per kernel, and of a synchronisation
  // on an asynchronous device.
  void time_kernels() { times_kernels_ = true; }
  bool times_kernels() const { return times_kernels_; }
  // The rank's current position in its work (trace_context.h).
  TraceContext& trace_context() { return main_ == nullptr ? *trace_context_ : main_->trace_context(); }
  // Notifies the observer of each kernel; null removes it. Kernels are then synchronised, as when they are timed.
  void observe(KernelObserver* observer) { observer_ = observer; }
  KernelObserver* observer() const { return main_ == nullptr ? observer_ : main_->observer(); }
  // Notifies `launches` of work queued here and on side streams; null removes it.
  void watch_launches(LaunchObserver* launches) { launches_ = launches; }
  LaunchObserver* launches() const { return main_ == nullptr ? launches_ : main_->launches(); }
  bool is_side() const { return main_ != nullptr; }
  // Seconds since an arbitrary moment: the calling thread's processor time if it computes alone, which other work on
  // the machine does not affect; with a pool, whose threads wait for each other, or a device, the wall-clock time.
  double now() const;

 private:
  Device device_;
  std::shared_ptr<Arena> arena_;
  ThreadPool& pool_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Tensor> scratch_;
  Stream* main_ = nullptr;  // null: this is the main stream
  std::unique_ptr<TraceContext> trace_context_;
  KernelObserver* observer_ = nullptr;
  LaunchObserver* launches_ = nullptr;
  bool times_kernels_ = false;
  std::string part_ = "other";
  std::map<std::string, std::map<std::string, Cost>> costs_;
  std::map<CallKind, Cost>* calls_ = nullptr;
};

}  // namespace witan
