// report.html: one offline file that shows a run, from its metrics.jsonl and config.toml.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/files/output_file.h"
#include "witan/report/events/metrics.h"
#include "witan/report/events/metrics_follower.h"

namespace witan {

// The page. It loads nothing from the network, and its content security policy forbids that to any text of the run.
std::string render_report(const Metrics& metrics, std::string_view config, double refresh_seconds = 0);

// The same with run_folder/config.toml, if it exists. Throws DataError for a run without a single step or evaluation,
// and IoError.
std::string render_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

// A page of a report or comparison, which `flag` of a command names. The flag follows its command.
OutputFile report_page(fs::path path, std::string flag);

// What the report of a run is written from while it trains and at its end: of a run of any length, in memory that does
// not grow with it. Each curve of a report has 2000 points at most. Damaged lines are left out.
MetricsFollower follow_for_report(const fs::path& run_folder);

// Reads run_folder/metrics.jsonl so and, if it exists, config.toml; writes run_folder/report.html and returns its path.
// Throws IoError, and DataError for a run without a single step or evaluation.
fs::path write_report(const fs::path& run_folder);
// The same of metrics that were read already. `refresh_seconds`: after which the page loads itself again, for a run
// that goes on and whose report is written anew; 0: never.
fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

}  // namespace witan
