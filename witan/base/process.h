// Facts about this process from the Linux kernel: its resident memory, and a debugger that traces it (ptrace).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace witan {

// The process that traces this process's main thread, or any other that is asked for; 0: none does.
pid_t tracer();
pid_t tracer_of_thread(pid_t thread);
pid_t this_thread();  // its number among all threads of the machine, which debuggers know it by

// Lets any process of the same user attach a debugger from now on, where the system (Yama) leaves that to the process.
void allow_debugger();

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

// Seconds by the steady clock, since it was made or since the process began.

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// Since the program was loaded.
double process_seconds();

}  // namespace witan
