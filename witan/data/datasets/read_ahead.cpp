#include "witan/data/datasets/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace witan {

void expect_random_reads(std::span<const std::byte> mapped) {
  if (!mapped.empty()) ::madvise(const_cast<std::byte*>(mapped.data()), mapped.size(), MADV_RANDOM);
}

void read_ahead(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapped.data()), first = address / page * page;
  ::madvise(reinterpret_cast<void*>(first), address - first + mapped.size(), MADV_WILLNEED);
}

}  // namespace witan
