// Rows of a corpus in their order, into one file (merge) or distributed to several (split).
#pragma once

#include <vector>

#include "witan/data/rows/row_job.h"

namespace witan {

struct CopyOptions {
  RowOptions rows;
  PartOptions parts;
  uint64_t checkpoint_bytes = 256 << 20;  // after a kill at most so much is written again
};

// Unusable rows are counted and kept in OUTPUT.quarantine.jsonl. What a killed process has begun goes on where it was,
// to the same bytes. Throws DataError for too many unusable rows or too few rows for the parts, ConfigError for files
// that exist, CorruptionError, IoError, DiskFullError.
MadeRows copy_rows(const std::vector<Source>& sources, const fs::path& output, const CopyOptions& options,
                   const ReportRowProgress& progress = {});

}  // namespace witan
