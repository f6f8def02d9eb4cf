// All-to-alls of ranks of one host whose GPUs do not reach each other's memory, as of GPUs behind a PCIe switch without
// peer access: one kernel sends and receives through rings in the host's memory (host_rings.h), with counts that stay
// on the device, so that it can be captured into a graph. NCCL would need the counts on the host, or messages of one
// size.
#pragma once

#include <memory>
#include <string>

#include "witan/comm/cuda/host_link.h"
#include "witan/comm/cuda/host_rings.h"
#include "witan/comm/cuda/waits.h"
#include "witan/comm/peers/host_pages.h"

namespace witan::cuda {

class HostExchange {
 public:
  // All ranks of the group together. Null on all of them unless they are few and share memory of one host that all
  // their GPUs reach. `link`, `watch` and the stream must outlive it; it must be destroyed when the stream is done, or
  // was stopped.
  static std::unique_ptr<HostExchange> make(HostLink& link, Stream& stream, DeviceWatch& watch);
  ~HostExchange();
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  // The group's calls that go this way.
  static bool takes(const Collective& call) {
    return call.kind == Collective::Kind::all_to_all || call.kind == Collective::Kind::all_to_all_equal;
  }
  // The ranks must have agreed on the call; counts need not be known to the host.
  void perform(Stream& stream, const Collective& call);

  std::string complaint() const;  // see Watched
  void stop() noexcept { words_.stop(); }

 private:
  HostExchange(HostLink& link, Stream& stream, DeviceWatch& watch, std::unique_ptr<HostPages> pages);
  // Pages come to lie near the processor that first writes to them, here that of the rank that empties their rings.
  void touch_own_rings();
  bool reaches_pages();  // whether this rank's GPU does

  HostLink& link_;
  const int device_;
  std::unique_ptr<HostPages> pages_;  // null: this host has none for all its ranks
  bool registered_ = false;
  RingProgress* progress_ = nullptr;  // on the device; the watch releases it
  Rings rings_{};
  WaitWords words_;
  CallOrder order_;
};

}  // namespace witan::cuda
