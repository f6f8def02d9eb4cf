#include "witan/tensor/cuda.h"

#include "witan/base/error.h"
#include "witan/tensor/timing.h"

namespace witan::cuda {
namespace {

[[noreturn]] void none() {
  throw DeviceError(why_none());
}

}  // namespace

bool built() {
  return false;
}
int devices() {
  return 0;
}
std::string why_none() {
  return "this build has no CUDA; build with `make build-cuda`, which needs the CUDA toolkit's nvcc";
}
bool can_access_peer(int, int) {
  none();
}
const Properties& properties(int) {
  none();
}
int64_t free_memory(int) {
  none();
}
std::byte* allocate(int, int64_t) {
  none();
}
void release(int, std::byte*) {}
std::byte* allocate_pinned(int64_t) {
  none();
}
void release_pinned(std::byte*) {}
void copy_in(int, std::byte*, const void*, int64_t) {
  none();
}
void copy_out(int, void*, const std::byte*, int64_t) {
  none();
}
std::unique_ptr<Queue> make_queue(int) {
  none();
}
std::unique_ptr<Timestamps> make_timestamps(int) {
  none();
}
void push_range(const std::string&) {}
void pop_range() {}
std::vector<double> time_calls(Queue&, int, const std::function<void()>&) {
  none();
}

Software software() {
  return {};
}
std::vector<LibraryState> libraries() {
  return {};
}
Link measure_link(int, int) {
  throw DeviceError(why_none());
}

}  // namespace witan::cuda
