// A word for each rank of a group, in memory that the group's ranks on one host share. Ranks can still signal each
// other by it when groups are broken and connections closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "witan/comm/peers/host_pages.h"

namespace witan {

class HostWords {
 public:
  // A collective over the group. Null, on all ranks of a host, if one of them cannot reach the memory.
  static std::unique_ptr<HostWords> make(HostGroup& group);

  void set() noexcept;  // sets the word of this rank
  // Waits until all ranks of this host have set their words; false after `seconds`.
  bool await_all(double seconds) const noexcept;

 private:
  HostWords(std::unique_ptr<HostPages> pages, int rank) : pages_(std::move(pages)), rank_(rank) {}
  std::atomic<uint32_t>& word(int rank) const;

  std::unique_ptr<HostPages> pages_;
  int rank_;  // of the group
};

}  // namespace witan
