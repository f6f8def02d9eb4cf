// Where tensors live and kernels run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "witan/tensor/dtype.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/shape.h"

namespace witan {

class Arena;
class KernelObserver;
class Tensor;
class ThreadPool;
struct Trail;
enum class MemoryTag : uint8_t;

// meta computes nothing, but allocates, counts and communicates exactly as the device it stands for.
struct Device {
  enum class Kind : uint8_t { cpu, cuda, meta };
  Kind kind = Kind::cpu;
  int index = 0;
  Kind stands_for = Kind::cpu;  // of a meta device
  bool operator==(const Device&) const = default;
  // Whose workspaces and code paths these are: a meta device has those of the one it stands for.
  Kind computes_as() const { return kind == Kind::meta ? stands_for : kind; }
};
std::ostream& operator<<(std::ostream& out, Device device);  // "cpu", "cuda:1", "meta"

// What a kernel does, by arithmetic: multiply-adds count as two, bytes as read plus written once.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  // that it took; 0 unless its stream times kernels
  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

// An ordered queue of work on one device, with the arena its tensors come from and the threads that run it.
// CPU streams run inline; CUDA streams run behind the host, which waits in read() and wait() alone; meta streams only
// count. Used by one thread: its rank.
class Stream {
 public:
  // CUDA kernels may use so much of scratch(), libraries' workspaces included. It is charged to the arena as workspace.
  static constexpr int64_t kScratchBytes = int64_t{256} << 20;

  // A CUDA stream needs a device that cuda::devices() counts; throws DeviceError.
  Stream(Device device, std::shared_ptr<Arena> arena, ThreadPool& pool, int64_t scratch_bytes = kScratchBytes);
  // One beside a rank's main stream, which must outlive it, for work that needs less scratch. It shares the main one's
  // trail and observer. Temporary tensors are the main stream's alone: their memory is handed out again in its order.
  Stream(Stream& main, int64_t scratch_bytes);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  bool is_meta() const { return device_.kind == Device::Kind::meta; }
  bool is_cuda() const { return device_.kind == Device::Kind::cuda; }
  // Whether memory is taken as on a GPU: on CUDA, and on the meta device that stands for it.
  bool plans_for_cuda() const { return device_.computes_as() == Device::Kind::cuda; }
  Arena& arena() { return *arena_; }
  ThreadPool& pool() { return pool_; }

  // Uninitialised memory from the arena; tag says whom the bytes are charged to. Throws OutOfMemoryError.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag);
  Tensor empty(const Shape& shape, DType dtype);  // an activation
  Tensor empty_like(const Tensor& other);
  Tensor zeros(const Shape& shape, DType dtype);
  Tensor zeros(const Shape& shape, DType dtype, MemoryTag tag);

  // Between host memory and contiguous tensors, in the order of the stream; nothing on the meta device. `from` may be
  // reused when write() returns; read() waits for all work before it.
  void write(const Tensor& to, const void* from);
  void read(void* to, const Tensor& from);
  void copy(const Tensor& to, const Tensor& from);  // of equal bytes, both contiguous and on this device
  void zero(const Tensor& to);
  void wait();
  // What is queued here from now on begins when all that `other`, of the same device, has by now is done.
  void follow(Stream& other);
  std::shared_ptr<Arena> shared_arena() const { return arena_; }
  Queue* queue() { return queue_.get(); }  // null on the meta device

  // Device memory that is valid until the next kernel of this stream begins; null on the meta device. At most the
  // constructor's bytes, aligned to 512. On CUDA alone.
  std::byte* scratch(int64_t bytes);

  // Costs are summed per (part, kernel). A part is what a person calls it: "attention", "experts", "head" …
  void count(const char* kernel, const Cost& cost) { costs_[part_][kernel] += cost; }
  std::string set_part(std::string part) { return std::exchange(part_, std::move(part)); }  // returns the one before
  const std::map<std::string, std::map<std::string, Cost>>& costs() const { return costs_; }
  double flops() const;
  void reset_costs() { costs_.clear(); }
  // From now on costs hold the time of each kernel too: two looks at the clock for each, and on a device that runs
  // behind the host a wait.
  void time_kernels() { times_kernels_ = true; }
  bool times_kernels() const { return times_kernels_; }
  // Where its rank is (trail.h).
  Trail& trail() { return main_ == nullptr ? *trail_ : main_->trail(); }
  // Told of each kernel from now on; null: nobody is. Kernels are waited for then, as when they are timed.
  void observe(KernelObserver* observer) { observer_ = observer; }
  KernelObserver* observer() const { return main_ == nullptr ? observer_ : main_->observer(); }
  // Seconds since some moment: the calling thread's processor time where it computes alone, which other work on the
  // machine does not lengthen; where it has a pool, whose threads wait for each other, or a device, those of the wall.
  double now() const;

 private:
  Device device_;
  std::shared_ptr<Arena> arena_;
  ThreadPool& pool_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Tensor> scratch_;
  Stream* main_ = nullptr;  // null: it is the main one
  std::unique_ptr<Trail> trail_;
  KernelObserver* observer_ = nullptr;
  bool times_kernels_ = false;
  std::string part_ = "other";
  std::map<std::string, std::map<std::string, Cost>> costs_;
};

}  // namespace witan
