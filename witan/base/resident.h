// What this process occupies, as the kernel counts it.
#pragma once

#include <cstdint>
#include <optional>

namespace witan {

// Bytes of memory that are in use rather than only reserved: arenas, heap, stacks, code, and pages of mapped files.
struct Resident {
  uint64_t now = 0;
  uint64_t peak = 0;   // the most so far, or since restart_resident_peak() (VmHWM)
  uint64_t files = 0;  // of `now`: pages of files, which the kernel may take back
};

// Nothing where the system does not say (/proc/self/status).
std::optional<Resident> read_resident();
// From here on the peak is that of what follows: freed memory that the C allocator still holds, such as of text that
// was tokenized, is given back first. Where the system refuses, the peak stays that of the whole process.
void restart_resident_peak();

}  // namespace witan
