// Who needs what lies in a run's folder.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::cli {

// A sentence for each other run of the folder whose configuration names something within `run`, by its name or by a
// path, which it reads when it is resumed: init_from, upcycle, a tokenizer, shards, routes. Runs in `leaving` do not
// count.
std::vector<std::string> runs_that_need(const fs::path& run, const fs::path& runs_folder,
                                        const std::set<std::string>& leaving);

// Processes of this host, as far as they may be looked at, that have a file within `folder` open or mapped:
// "process 4711 (witan) has .../shard-0.safetensors open". This process is none of them.
std::vector<std::string> processes_that_use(const fs::path& folder);

}  // namespace witan::cli
