// What the commands that make token shards say of unfinished work.
#pragma once

#include <functional>
#include <string>

#include "witan/data/prepare/prepare.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {

// Runs `work`, which calls prepare_dataset() for shards of this prefix. A signal that ends it, and an error, say what
// is kept, and how to go on; the error is passed on.
PreparedDataset saying_what_is_kept(Progress& progress, const fs::path& prefix,
                                    const std::function<PreparedDataset()>& work);

}  // namespace witan::cli
