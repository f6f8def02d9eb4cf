// Where tensors live and kernels run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

class Arena;
class Tensor;
class ThreadPool;
enum class MemoryTag : uint8_t;

// meta computes nothing, but allocates, counts and communicates exactly as the device it stands for.
struct Device {
  enum class Kind : uint8_t { cpu, meta };
  Kind kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, Device device) {
  return out << (device.kind == Device::Kind::cpu ? "cpu" : "meta");
}

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
// CPU streams run inline; meta streams only count. Used by one thread: its rank.
class Stream {
 public:
  Stream(Device device, std::shared_ptr<Arena> arena, ThreadPool& pool)
      : device_(device), arena_(std::move(arena)), pool_(pool) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  bool is_meta() const { return device_.kind == Device::Kind::meta; }
  Arena& arena() { return *arena_; }
  ThreadPool& pool() { return pool_; }

  // Uninitialised memory from the arena; tag says whom the bytes are charged to. Throws OutOfMemoryError.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag);
  Tensor empty(const Shape& shape, DType dtype);  // an activation
  Tensor empty_like(const Tensor& other);
  Tensor zeros(const Shape& shape, DType dtype);
  Tensor zeros(const Shape& shape, DType dtype, MemoryTag tag);

  // Costs are summed per (part, kernel). A part is what a person calls it: "attention", "experts", "head" …
  void count(const char* kernel, const Cost& cost) { costs_[part_][kernel] += cost; }
  std::string set_part(std::string part) { return std::exchange(part_, std::move(part)); }  // returns the one before
  const std::map<std::string, std::map<std::string, Cost>>& costs() const { return costs_; }
  double flops() const;
  void reset_costs() { costs_.clear(); }
  // From now on costs hold the time of each kernel too: two looks at the clock for each.
  void time_kernels() { times_kernels_ = true; }
  bool times_kernels() const { return times_kernels_; }
  // Seconds since some moment: the calling thread's processor time where it computes alone, which other work on the
  // machine does not lengthen; where it has a pool, whose threads wait for each other, those of the wall.
  double now() const;

 private:
  Device device_;
  std::shared_ptr<Arena> arena_;
  ThreadPool& pool_;
  bool times_kernels_ = false;
  std::string part_ = "other";
  std::map<std::string, std::map<std::string, Cost>> costs_;
};

}  // namespace witan
