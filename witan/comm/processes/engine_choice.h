// Which engine carries the messages between the processes of a job: the same for all of its ranks.
#pragma once

#include <string>

#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/links.h"

namespace witan {

struct EngineChoice {
  std::string name;      // "UCX 1.13.1", "TCP connections"
  std::string why = {};  // why it is not UCX, where any engine would do
};

// "between processes by UCX 1.13.1", or why it is not that.
std::string format_engine(const EngineChoice& choice);

// Loads what choose_engine() may use. Before this process has other threads: UCX rewrites the C library's mmap(),
// munmap() and the like as it is loaded, and a thread that is in one of them may crash.
void load_engine(CommEngine wanted);

// All ranks together, before they make groups: they tell rank 0 what they were told and what they have, which answers
// whether all use UCX, as they do where all have the same version of it, and with its addresses. Throws CommError when
// they were told differently, ConfigError when UCX is asked for and this rank has none, and what Links::wait() throws.
EngineChoice choose_engine(Links& links, CommEngine wanted, double seconds);

}  // namespace witan
