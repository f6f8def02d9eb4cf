// Memory that a group's ranks on one host share, whether they are threads or processes. It has no name, so that a job
// that is killed leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "witan/comm/host_group.h"

namespace witan {

class HostPages {
 public:
  // `bytes` zeros for the ranks of each host. A collective over the group. Null, on all ranks of a host, if one of them
  // cannot reach the memory.
  static std::unique_ptr<HostPages> make(HostGroup& group, int64_t bytes);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  std::byte* base() const;  // begins a page; each rank has an address of its own
  int64_t bytes() const { return bytes_; }
  const std::vector<int>& ranks() const { return ranks_; }  // of the group, those of this host

 private:
  HostPages(std::byte* mapped, int64_t bytes, std::vector<int> ranks)
      : mapped_(mapped), bytes_(bytes), ranks_(std::move(ranks)) {}

  std::byte* mapped_;  // a page with a number by which ranks recognize the memory, then the memory itself
  int64_t bytes_;
  std::vector<int> ranks_;
};

}  // namespace witan
