#include "witan/cli/data/kept_work.h"

#include "witan/base/error.h"
#include "witan/cli/data/interrupt.h"

namespace witan::cli {

PreparedDataset saying_what_is_kept(Progress& progress, const fs::path& prefix,
                                    const std::function<PreparedDataset()>& work) {
  const std::string partial = prefix.string() + ".partial";
  const InterruptNote note(
      cat("whole pieces of the tokens are kept in ", partial, ".*; the same command continues behind them"));
  try {
    return work();
  } catch (const std::exception&) {
    if (fs::exists(partial + ".json"))
      progress.note(cat("kept: the tokens up to the last whole piece, in ", partial,
                        ".*; the same command continues behind it, and without these files begins anew"));
    throw;
  }
}

}  // namespace witan::cli
