// Checks for failed ranks and deadlines while a rank waits for its GPU.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {

// Something on the device that waits for other ranks.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual std::string complaint() = 0;  // why its work will never be done; empty: no reason known
  virtual void stop() noexcept = 0;     // ends its device-side waits that a word in memory ends; at once
  // Ends the rest. Waits until graphs that hold its work are destroyed, on a thread of its own: the rank's destroys
  // them, for which their work must have ended.
  virtual void abort() noexcept = 0;
};

// Used by the thread of its rank alone.
class DeviceWatch {
 public:
  // `hold`: ranks that a debugger may hold, while no deadline runs; null: there are none.
  DeviceWatch(Stream& stream, std::shared_ptr<Failure> failure, double deadline_seconds,
              std::shared_ptr<DebugHold> hold);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(Watched& watched) { watched_.push_back(&watched); }
  void remove(Watched& watched) { std::erase(watched_, &watched); }

  // Begins to abort what is watched and throws: AbortedError when another rank has failed, CommError for a complaint,
  // or a wait beyond the deadline.
  void look(double waited_seconds);
  // For destructors, where graphs are gone: true when all work of the stream is done and nothing went wrong. Otherwise
  // everything has been aborted.
  bool settled() noexcept;

  const std::shared_ptr<Failure>& failure() const { return failure_; }
  double deadline_seconds() const { return deadline_; }
  // Of what waits on the device, where nobody sees a debugger: for ever if one may come. The host watches over it.
  double device_deadline_seconds() const;

 private:
  std::string complaint() const;
  // Begins to end all that is watched; join_aborts() waits until it has ended.
  void abort_all() noexcept;
  void join_aborts() noexcept;

  Stream& stream_;
  std::shared_ptr<Failure> failure_;
  double deadline_;
  std::shared_ptr<DebugHold> hold_;
  double held_until_ = 0;  // of a wait: so many seconds of it do not count
  std::vector<Watched*> watched_;
  bool aborted_ = false;
  std::vector<std::thread> aborts_;
};

}  // namespace witan::cuda
