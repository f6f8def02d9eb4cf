// The trace context of a rank: its current position in its work, for errors, which would otherwise not know the step
// and layer, and for traces.
//
// A trail refers to strings owned by others and is set by scopes; no text is built until it is needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/tensor/device.h"

namespace witan {

struct Trail {
  enum class Phase : uint8_t {
    none,
    set_up,
    loading,
    forward,
    backward,
    gradients,
    optimizer,
    logging,
    evaluation,
    sample,
    saving
  };
  static constexpr int kPhases = 11;

  int64_t step = 0;  // from 1; 0: none
  Phase phase = Phase::none;
  int64_t micro_batch = -1;      // of this rank, from 0; -1: none
  std::string_view module = {};  // path of a module, "layers.2.moe", or a parameter's name
  std::string_view op = {};      // in a backward: the name under which its op was recorded

  bool operator==(const Trail&) const = default;
};
std::string_view name_of(Trail::Phase phase);
// "step 3, backward of micro-batch 1, layers.2.moe (combine)"; empty if nothing is set.
std::string describe(const Trail& trail);
// The same as the end of a sentence: " in step 3, …", or nothing.
std::string in_words(const Trail& trail);

// Restores the stream's trail when it is destroyed, whatever was set in between.
class TrailScope {
 public:
  explicit TrailScope(Stream& stream) : trail_(stream.trail()), before_(trail_) {}
  TrailScope(Stream& stream, Trail::Phase phase, int64_t micro_batch = -1) : TrailScope(stream) {
    trail_.phase = phase;
    trail_.micro_batch = micro_batch;
  }
  TrailScope(Stream& stream, std::string_view module) : TrailScope(stream) {
    if (!module.empty()) trail_.module = module;
  }
  ~TrailScope() { trail_ = before_; }
  TrailScope(const TrailScope&) = delete;
  TrailScope& operator=(const TrailScope&) = delete;

  Trail& operator*() const { return trail_; }
  Trail* operator->() const { return &trail_; }

 private:
  Trail& trail_;
  const Trail before_;
};

}  // namespace witan
