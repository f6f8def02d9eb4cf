// Facts about this process: its age, and from the Linux kernel its resident memory and the debugger that traces it
// (ptrace). Thread-safe, except for restart_resident_peak().
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace witan {

// The process that traces this process's main thread, or the given thread; 0: none.
pid_t tracer();
pid_t tracer_of_thread(pid_t thread);
// The thread's system-wide id, which debuggers use.
pid_t this_thread();

// Lets any process of the same user attach a debugger from now on, if the system (Yama) leaves that to the process.
// Otherwise only ancestors of this process may attach.
void allow_debugger();

// Bytes of memory that are in use rather than only reserved: arenas, heap, stacks, code, and pages of mapped files.
// GPU memory is not included.
struct Resident {
  uint64_t now = 0;
  uint64_t peak = 0;   // the most so far, or since restart_resident_peak() (VmHWM)
  uint64_t files = 0;  // of `now`: pages of files, which the kernel may take back
};

// Nothing if the system does not report it (/proc/self/status).
std::optional<Resident> read_resident();
// Restarts the measurement of the peak. Freed memory that the C allocator still holds, such as that of tokenized text,
// is returned first. If the system refuses, the peak remains that of the whole process.
void restart_resident_peak();

// Measures seconds by the steady clock since its construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// Seconds since the program was loaded.
double process_seconds();

}  // namespace witan
