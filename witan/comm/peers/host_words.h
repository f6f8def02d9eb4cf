// A word for each rank of a group, in memory that the group's ranks on one host share, whether they are threads or
// processes. Ranks can still signal each other by it when groups are broken and connections closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "witan/comm/host_group.h"

namespace witan {

class HostWords {
 public:
  // A collective over the group. Null, on all ranks of a host, if one of them cannot reach the memory.
  static std::unique_ptr<HostWords> make(HostGroup& group);
  ~HostWords();
  HostWords(const HostWords&) = delete;
  HostWords& operator=(const HostWords&) = delete;

  void set() noexcept;  // sets the word of this rank
  // Waits until all ranks of this host have set their words; false after `seconds`.
  bool await_all(double seconds) const noexcept;

 private:
  struct Page;  // a number by which ranks recognize the page, and then the words

  HostWords(Page* page, int64_t bytes, int rank, std::vector<int> ranks)
      : page_(page), bytes_(bytes), rank_(rank), ranks_(std::move(ranks)) {}
  std::atomic<uint32_t>& word(int rank) const;

  Page* page_;
  int64_t bytes_;
  int rank_;                // of the group
  std::vector<int> ranks_;  // of this host
};

}  // namespace witan
