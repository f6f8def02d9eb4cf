// Checks for failed ranks and deadlines while a rank waits for its GPU.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/comm/peers/host_words.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {

// Something on the device that waits for other ranks.
class Watched {
 public:
  virtual ~Watched() = default;
  // Why its work, for which the rank has waited so long, will never be done; empty: no reason known.
  virtual std::string complaint(double waited_seconds) = 0;
  virtual void stop() noexcept = 0;  // ends its device-side waits that a word in memory ends; at once
  // Ends the rest. Waits until graphs that hold its work are destroyed, on a thread of its own: the rank's destroys
  // them, for which their work must have ended.
  virtual void abort() noexcept = 0;
};

// How long an ending rank waits for others' accesses to its memory. A kernel that moves rows takes milliseconds, but a
// process that was killed never reports that it is done.
inline constexpr double kPartingSeconds = 2;
// Waits until all work of a stream is done, or the device has failed; false after `seconds`.
bool done_within(cudaStream_t stream, double seconds) noexcept;
bool done_within(cudaEvent_t event, double seconds) noexcept;

// Ends the waits of a rank for its GPU when another rank fails or a deadline passes. Used only by the thread of its
// rank.
//
// When a rank is stopped, by an error of its own or of another rank, kernels of other ranks may still be storing into
// its memory: they poll the word that ends their waits, but finish the rows that they have begun. Therefore a rank sets
// a word on the host once its own device accesses nobody's memory any more, and its watch, as the last thing it does,
// waits for the words of the host's other ranks before any memory is released. The wait ends after kPartingSeconds,
// since a process that was killed sets no word; its kernels end with it. Other hosts reach no memory.
class DeviceWatch {
 public:
  // `hold`: ranks that a debugger may hold, while no deadline runs; null: there are none. `parting`: the words; null
  // where ranks of this host share none.
  DeviceWatch(Stream& stream, std::shared_ptr<Failure> failure, double deadline_seconds,
              std::shared_ptr<DebugHold> hold, std::unique_ptr<HostWords> parting);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(Watched& watched) { watched_.push_back(&watched); }
  void remove(Watched& watched) { std::erase(watched_, &watched); }
  // Whether the ranks of this host can tell each other when they have stopped. Otherwise nobody knows when memory that
  // others reach may be released, so that none is given to them. The same on all ranks of a host.
  bool ranks_can_part() const { return parting_ != nullptr; }
  // Takes memory of the rank's device that others reach, and releases it once they are done.
  void keep(std::byte* shared) { kept_.push_back(shared); }

  // Begins to abort what is watched and throws: AbortedError when another rank has failed, CommError for a complaint,
  // or a wait beyond the deadline, in which time does not count while this process is stopped.
  void poll(double waited_seconds);
  // For destructors, where graphs are gone: true when all work of the stream is done and nothing went wrong. Otherwise
  // everything has been aborted.
  bool settled() noexcept;

  const std::shared_ptr<Failure>& failure() const { return failure_; }
  double deadline_seconds() const { return deadline_; }
  // The deadline of waits on the device, which cannot see a debugger: infinite if one may attach. The host watches the
  // actual deadline.
  double device_deadline_seconds() const;

 private:
  std::string complaint(double waited_seconds) const;
  // Begins to end all that is watched; join_aborts() waits until it has ended.
  void abort_all() noexcept;
  void join_aborts() noexcept;
  void part() noexcept;

  Stream& stream_;
  std::shared_ptr<Failure> failure_;
  double deadline_;
  std::shared_ptr<DebugHold> hold_;
  double held_until_ = 0;  // of a wait: so many seconds of it do not count
  double last_poll_ = 0;   // of a wait: after how many seconds the last look was
  std::vector<Watched*> watched_;
  bool aborted_ = false;
  std::vector<std::thread> aborts_;
  std::unique_ptr<HostWords> parting_;
  std::vector<std::byte*> kept_;
};

}  // namespace witan::cuda
