// Checks before training that all ranks were started with the same settings and will call the same collectives. A step
// on the meta device lists the calls, so that a program that differs on one host is refused before it hangs the others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/comm/group.h"

namespace witan {

using Settings = std::vector<std::pair<std::string, std::string>>;  // keys, each once, and values

// How the settings of the ranks, by rank, differ: each key that does, with the values and who has them, the usual one
// first; empty where they do not. "hidden_size = 64 on ranks 0, 1, 3, but 128 on rank 2".
std::string difference(const std::vector<Settings>& settings);

// The settings of the ranks differ. It is the error of every rank, whichever of them finds it first.
class SettingsDifferError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Throws SettingsDifferError for settings that differ, naming how; a rank that learns of it from another rank's failure
// throws a ConfigError of the same words. The ranks exchange a hash, and the settings only when those differ. `stream`
// is on the CPU.
void require_same_settings(Stream& stream, Group& world, const Settings& own);

// Lists the collectives that a rank calls. It observes groups, which must not outlive it unless they are given another
// observer (Group::observe).
class CallSchedule : public CallObserver {
 public:
  // A sequence of calls that some ranks must agree on: the collectives of a group, or the messages from one of its
  // ranks to another.
  struct Lane {
    std::string name;                      // "axis expert", "axis pipeline, from rank 0 to rank 4"
    std::vector<int> ranks;                // of the world
    std::vector<std::string> calls = {};   // "all_reduce float32 [2, 3]"
    std::vector<std::string> places = {};  // where each is made: "step 1, forward of micro-batch 0, layers.1.moe"
    std::vector<std::string> sizes = {};   // of the parts of uneven calls: "[2, 1, 1]"; else empty

    uint64_t id() const;    // the same on all ranks of the lane, and of no other
    uint64_t hash() const;  // of the calls
  };

  // Starts recording the calls of the group; `ranks` are its ranks in the world.
  void follow(Group& group, const std::vector<int>& ranks);
  void begins(const Group& group, const Collective& call, double bytes_sent) override;

  const std::vector<Lane>& lanes() const { return lanes_; }

 private:
  Lane& lane_of(const Group& group, const Collective& call);

  std::map<const Group*, std::vector<int>> ranks_;
  std::vector<Lane> lanes_;
};

// Collective over all ranks of `world`. Throws CommError, the same on all of them, when ranks of a lane would not make
// the same calls: it names the lane, the number of the first call that differs, what two ranks would call and where.
// Ranks tell each other hashes, and more only when those differ. `stream` is on the CPU, with an arena for the calls of
// a lane.
void require_same_schedule(Stream& stream, Group& world, const CallSchedule& own);

}  // namespace witan
