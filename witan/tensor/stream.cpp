#include <cassert>
#include <cstring>
#include <ctime>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/device.h"
#include "witan/tensor/observer.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/tensor.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

class CpuQueue final : public Queue {
 public:
  void write(std::byte* to, const void* from, int64_t bytes) override { move(to, from, bytes); }
  void read(void* to, const std::byte* from, int64_t bytes) override { move(to, from, bytes); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override { move(to, from, bytes); }
  void zero(std::byte* to, int64_t bytes) override { std::memset(to, 0, static_cast<size_t>(bytes)); }
  void wait() override {}
  void check(const char*) override {}
  void* native() override { return nullptr; }

 private:
  static void move(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

std::unique_ptr<Queue> queue_of(Device device) {
  if (device.kind == Device::Kind::meta) return nullptr;
  if (device.kind == Device::Kind::cuda) return cuda::make_queue(device.index);
  return std::make_unique<CpuQueue>();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Device device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return out << "cpu";
    case Device::Kind::cuda:
      return out << "cuda:" << device.index;
    default:
      return out << "meta";
  }
}

Stream::Stream(Device device, std::shared_ptr<Arena> arena, ThreadPool& pool, int64_t scratch_bytes)
    : device_(device),
      arena_(std::move(arena)),
      pool_(pool),
      queue_(queue_of(device)),
      trace_context_(std::make_unique<TraceContext>()) {
  arena_->tell_place(trace_context_.get());
  if (plans_for_cuda())
    scratch_ = std::make_unique<Tensor>(empty({scratch_bytes / 4}, DType::i32, MemoryTag::workspace));
}
Stream::Stream(Stream& main, int64_t scratch_bytes) : Stream(main.device_, main.arena_, main.pool_, scratch_bytes) {
  main_ = &main;
  arena_->tell_place(&main.trace_context());
}
Stream::~Stream() {
  if (arena_->place() == trace_context_.get()) arena_->tell_place(nullptr);
}

int64_t steady_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

Tensor Stream::empty(const Shape& shape, DType dtype, MemoryTag tag) {
  Tensor memory(device_, arena_, shape, dtype, tag);
  if (observer() != nullptr)
    if (auto* watching = dynamic_cast<TensorObserver*>(observer())) watching->allocated(*this, memory);
  return memory;
}
Tensor Stream::empty(const Shape& shape, DType dtype) {
  return empty(shape, dtype, MemoryTag::activations);
}
Tensor Stream::empty_like(const Tensor& other) {
  return empty(other.shape(), other.dtype());
}

Tensor Stream::zeros(const Shape& shape, DType dtype, MemoryTag tag) {
  Tensor filled = empty(shape, dtype, tag);
  zero(filled);
  return filled;
}
Tensor Stream::zeros(const Shape& shape, DType dtype) {
  return zeros(shape, dtype, MemoryTag::activations);
}

void Stream::write(const Tensor& to, const void* from) {
  assert(to.contiguous());
  if (queue_) queue_->write(to.raw(), from, to.bytes());
}
void Stream::read(void* to, const Tensor& from) {
  assert(from.contiguous());
  if (queue_) queue_->read(to, from.raw(), from.bytes());
}
void Stream::copy(const Tensor& to, const Tensor& from) {
  assert(to.contiguous() && from.contiguous() && to.bytes() == from.bytes());
  if (queue_ && to.raw() != from.raw()) queue_->copy(to.raw(), from.raw(), to.bytes());
}
void Stream::copy_pinned(const Tensor& to, const Tensor& from) {
  assert(to.contiguous() && from.contiguous() && to.bytes() == from.bytes());
  if (queue_) queue_->copy_pinned(to.raw(), from.raw(), to.bytes());
}
void Stream::zero(const Tensor& to) {
  assert(to.contiguous());
  if (queue_) queue_->zero(to.raw(), to.bytes());
}
void Stream::wait() {
  if (queue_) queue_->wait();
}
void Stream::follow(Stream& other) {
  assert(device_ == other.device_);
  if (queue_) queue_->follow(*other.queue_);
  if (launches() != nullptr) launches()->follows(*this);
}

std::byte* Stream::scratch(int64_t bytes) {
  assert(scratch_ && bytes <= scratch_->bytes());
  return bytes <= scratch_->bytes() ? scratch_->raw() : nullptr;
}

double Stream::now() const {
  timespec time{};
  const bool alone = pool_.threads() == 1 && !is_cuda();
  ::clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Stream::count(const char* kernel, const Cost& cost) {
  count(kernel, cost, {});
}
void Stream::count(const char* kernel, const Cost& cost, const CallShape& shape) {
  Cost counted = cost;
  if (counted.calls == 0) counted.calls = 1;
  costs_[part_][kernel] += counted;
  if (calls_ == nullptr || is_side()) return;
  const TraceContext& at = trace_context();
  (*calls_)[{at.phase, at.chunk, false, part_, {}, kernel, shape}] += counted;
}
void Stream::count_exchange(const std::string& group, std::string_view operation, double bytes, int ranks) {
  auto* const calls = main_ == nullptr ? calls_ : main_->calls_;
  if (calls == nullptr) return;
  const TraceContext& at = trace_context();
  const CallShape shape{static_cast<int64_t>(bytes), ranks};
  (*calls)[{at.phase, at.chunk, is_side(), {}, group, std::string(operation), shape}] += {0, bytes, 0, 1};
}

double Stream::flops() const {
  double sum = 0;
  for (const auto& [part, kernels] : costs_)
    for (const auto& [kernel, cost] : kernels) sum += cost.flops;
  return sum;
}

std::unique_ptr<Graph> record(Queue& queue, const std::function<void()>& work) {
  queue.begin_recording();
  try {
    work();
  } catch (...) {
    try {
      queue.end_recording();
    } catch (const DeviceError&) {  // the exception that broke the recording is thrown below
    }
    throw;
  }
  return queue.end_recording();
}

}  // namespace witan
