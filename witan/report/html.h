// report.html: one offline file that shows a run, from its metrics.jsonl and config.toml.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/file.h"
#include "witan/report/metrics.h"

namespace witan {

// The page. It loads nothing from the network, and its content security policy forbids that to any text of the run.
std::string render_report(const Metrics& metrics, std::string_view config, double refresh_seconds = 0);

// The same with run_folder/config.toml, if it exists. Throws DataError for a run without a single step or evaluation,
// and IoError.
std::string render_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

// Reads run_folder/metrics.jsonl and, if it exists, config.toml; writes run_folder/report.html and returns its path.
// Throws IoError, CorruptionError, and DataError for a run without a single step or evaluation.
fs::path write_report(const fs::path& run_folder);
// The same of metrics that were read already. `refresh_seconds`: after which the page loads itself again, for a run
// that goes on and whose report is written anew; 0: never.
fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

}  // namespace witan
