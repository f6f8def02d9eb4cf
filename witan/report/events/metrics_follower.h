// Follows a growing metrics.jsonl: each poll reads what was appended since the last one, so that a run of 1e6
// steps can be followed. The file is only read, never mapped or locked: a run that resumes may cut it at any time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "witan/base/files/file.h"
#include "witan/report/events/metrics.h"

namespace witan {

class MetricsFollower {
 public:
  // How many events are kept at least, once there are so many; at most there are twice as many, evenly spread, and the
  // last one. Before them the first ones, one for every kHeadShare of that number, are kept as they are. All other
  // kinds of events are kept whole.
  struct Most {
    int64_t steps = 20'000;
    int64_t experts = 1'000;      // each has a number per layer and expert
    int64_t layers = 2'000;       // each has numbers per layer
    int64_t activations = 2'000;  // likewise
    int64_t gpus = 4'000;         // each has numbers per GPU
  };

  enum class OnDamage : uint8_t { throws, left_out };

  explicit MetricsFollower(fs::path path);
  MetricsFollower(fs::path path, Most most, OnDamage on_damage = OnDamage::throws);

  // Reads on from where it stopped, or from the start where the file was cut or replaced since. Whether anything
  // changed. A file that does not exist yet is empty; a torn last line is left for the next time. Throws IoError, also
  // where a file that was read is gone, and CorruptionError("FILE: byte N: why") unless damaged lines are left out;
  // metrics() are then what they were.
  bool read_more();

  const Metrics& metrics() const { return metrics_; }
  const DamagedLines& damaged() const { return damaged_; }  // of the lines that were not passed over

 private:
  // How lines of one kind of event are thinned: the first `most` / kHeadShare are kept, then one in every `stride`, and
  // the last.
  struct Thinning {
    int64_t most = 0, stride = 1;
    int64_t head = 0, seen = 0;  // the first ones that were kept, and lines after them
    bool last_is_extra = false;  // it goes when the next one comes
    std::string skipped = {};    // the last line, if it was passed over
    uint64_t skipped_at = 0;     // its byte in the file
  };

  void read_from(int fd, uint64_t size);
  bool goes_on(int fd, uint64_t size) const;
  void take_lines(std::string_view text, uint64_t offset);
  void take_line(std::string_view line, uint64_t at);
  template <class E>
  void take_thinned(Thinning& thinning, std::vector<E>& events, std::string_view line, uint64_t at);
  template <class E>
  void keep_last(Thinning& thinning, std::vector<E>& events);
  void add(std::string_view line, uint64_t at);

  fs::path path_;
  Most most_;
  OnDamage on_damage_;
  Metrics metrics_;
  DamagedLines damaged_;
  Thinning steps_, experts_, layers_, activations_, gpus_;
  uint64_t offset_ = 0;                // everything before it was read
  std::pair<dev_t, ino_t> file_ = {};  // which file that was
  std::string tail_;                   // its last bytes before offset_
  bool failed_ = false;                // lines after offset_ were taken before one that cannot be read
};

}  // namespace witan
