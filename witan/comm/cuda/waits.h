// The words by which the host ends waits of a rank's kernels for other ranks, and by which kernels say why they gave
// up; and the order of calls whose progress is counted on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "witan/comm/cuda/watch.h"

namespace witan::cuda {

// Why a kernel gave up, with the rank it waited for: a word that the host reads.
enum class Trouble : uint32_t { counts, coming, leaving, capacity, sending, taking };
inline constexpr uint32_t kTroubled = 1u << 31;
inline constexpr int kTroubleBits = 16;

// The words with which a kernel's waits end, as its argument.
struct Waits {
  const uint32_t* abort;  // on the host: becomes 1 when a rank fails
  uint32_t* trouble;      // on the host
  uint32_t* failed;       // on the device: becomes 1 when this rank waits no more
  uint64_t deadline;      // of one wait, ns
};

class WaitWords {
 public:
  // The failure of the watch's world ends the waits.
  WaitWords(DeviceWatch& watch, int device);
  WaitWords(const WaitWords&) = delete;
  WaitWords& operator=(const WaitWords&) = delete;

  // For kernels of the current device.
  Waits waits(uint32_t* failed) const;
  double deadline_seconds() const { return deadline_; }
  void stop() noexcept { words_->abort.store(1); }
  // Why a kernel gave up and which rank of its group it waited for, if one did.
  std::optional<std::pair<Trouble, int>> trouble() const;

 private:
  struct Words {
    std::atomic<uint32_t> abort{0}, trouble{0};
  };

  const double deadline_;
  std::shared_ptr<Words> words_;                  // on the host; the device reads and writes them
  std::shared_ptr<std::atomic<uint32_t>> abort_;  // of words_
};

// Calls that count on the device come one after the other: one on another stream than the last waits for it.
class CallOrder {
 public:
  // `main` must outlive it.
  explicit CallOrder(Stream& main);
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  // Around the kernels of each call. A graph begins when its stream has done all else, so that what was called outside
  // of it has ended; in a graph, calls on side streams are joined to the main stream.
  void begin(Stream& stream);
  void end(Stream& stream);
  bool done_within(double seconds) const noexcept;

 private:
  Stream& main_;
  cudaEvent_t last_ = nullptr;          // after the last call
  cudaStream_t last_stream_ = nullptr;  // which it is on
  unsigned long long last_graph_ = 0;   // in which it is captured; 0: in none
  cudaEvent_t beside_ = nullptr;        // after the last call that ran beside the main stream
};

}  // namespace witan::cuda
