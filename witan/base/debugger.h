// A debugger of this process (Linux's ptrace).
#pragma once

#include <sys/types.h>

namespace witan {

// The process that traces this process's main thread, or any other that is asked for; 0: none does.
pid_t tracer();
pid_t tracer_of_thread(pid_t thread);
pid_t this_thread();  // its number among all threads of the machine, which debuggers know it by

// From now on any process of the same user may attach, where the system (Yama) leaves that to the traced one.
void allow_debugger();

}  // namespace witan
