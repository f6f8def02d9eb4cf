#include "witan/cli/models/imported_run.h"

#include "witan/convert/ledger.h"

namespace witan::cli {

bool has_imported_weights(const fs::path& run) {
  std::error_code error;
  return fs::is_regular_file(run / kLedgerName, error) && fs::exists(run / "checkpoints", error);
}

bool is_imported_only(const fs::path& run) {
  std::error_code error;
  return has_imported_weights(run) && !fs::exists(run / "metrics.jsonl", error);
}

}  // namespace witan::cli
