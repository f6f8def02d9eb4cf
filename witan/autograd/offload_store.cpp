#include "witan/autograd/offload_store.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/observer.h"

namespace witan {
namespace {

constexpr int64_t kScratch = 512;  // copies need none

std::shared_ptr<Arena> reserve_host(Device device, int64_t bytes) {
  switch (device.kind) {
    case Device::Kind::meta:
      return Arena::meta();
    case Device::Kind::cuda:
      return Arena::reserve_pinned(bytes);
    default:
      return Arena::reserve(bytes);
  }
}

}  // namespace

OffloadStore::OffloadStore(Stream& main) : main_(main), side_(main, kScratch) {}

int64_t OffloadStore::room_for(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

void OffloadStore::reserve(int64_t bytes) {
  assert(!host_ || host_->live() == 0);
  host_.reset();
  reserved_ = bytes;
  if (bytes > 0) host_ = reserve_host(main_.device(), bytes);
}

void OffloadStore::begin_pass() {
  settle();  // what an error left of a pass
  latest_.reset();
}

void OffloadStore::end_pass() {
  settle();
}

std::shared_ptr<OffloadStore::Kept> OffloadStore::keep(const Tensor& value, bool leaves) {
  settle();
  auto kept = std::make_shared<Kept>(*this);
  kept->previous_ = std::exchange(latest_, kept);
  if (!leaves) {
    kept->device_ = value;
    return kept;
  }
  const Device host = main_.is_meta() ? main_.device() : Device{Device::Kind::cpu};
  kept->host_ = Tensor(host, host_, value.shape(), value.dtype(), MemoryTag::activations);
  most_used_ = std::max(most_used_, host_->high_water());
  side_.follow(main_);
  copy(kept->host_, value, "offload");
  leaving_ = value;
  return kept;
}

// The main stream may reuse the memory of what has left.
void OffloadStore::settle() {
  if (!leaving_.defined()) return;
  main_.follow(side_);
  leaving_ = {};
}

void OffloadStore::copy(const Tensor& to, const Tensor& from, const char* name) {
  LaunchObserver* const launches = side_.launches();
  if (launches != nullptr) launches->begins(side_);
  side_.copy_pinned(to, from);
  if (launches != nullptr) launches->ends(side_, {.name = name, .cost = {0, static_cast<double>(to.bytes())}});
}

// The side stream orders all copies, so that the host's memory may be taken again while it is still being read.
void OffloadStore::Kept::fetch() {
  if (device_.defined()) return;
  device_ = store_.main_.empty(host_.shape(), host_.dtype());
  store_.side_.follow(store_.main_);  // which may still use the memory
  store_.copy(device_, host_, "fetch");
  host_ = {};
  arrives_ = true;
}

Tensor OffloadStore::Kept::take() {
  fetch();
  if (std::exchange(arrives_, false)) store_.main_.follow(store_.side_);
  if (const auto previous = previous_.lock()) previous->fetch();
  return std::exchange(device_, {});
}

// A value that was fetched for a backward that did not need it, or that an error kept from running.
OffloadStore::Kept::~Kept() {
  if (!arrives_) return;
  try {
    store_.main_.follow(store_.side_);
  } catch (const DeviceError&) {  // the device has failed, which others report
  }
}

}  // namespace witan
