#include "witan/report/html.h"

#include "witan/base/error.h"
#include "witan/report/page.h"

namespace witan {

std::string render_report(const Metrics& metrics, std::string_view config, double refresh_seconds) {
  return frozen_page(report_parts(metrics, config), refresh_seconds);
}

std::string render_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds) {
  require<DataError>(!metrics.steps.empty() || !metrics.evals.empty(), (run_folder / "metrics.jsonl").string(),
                     ": no step is recorded yet, so there is nothing to report; train first");
  constexpr uint64_t kMostConfig = uint64_t{1} << 20;
  const fs::path config = run_folder / "config.toml";
  return frozen_page(
      report_parts(metrics, fs::exists(config) ? read_file(config, kMostConfig) : "", run_folder.filename().string()),
      refresh_seconds);
}

fs::path write_report(const fs::path& run_folder) {
  return write_report(run_folder, read_metrics(run_folder / "metrics.jsonl"));
}

fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds) {
  const std::string page = render_report(run_folder, metrics, refresh_seconds);
  write_file_atomically(run_folder / "report.html", page);
  return run_folder / "report.html";
}

}  // namespace witan
