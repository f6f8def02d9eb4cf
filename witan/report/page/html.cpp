#include "witan/report/page/html.h"

#include "witan/base/error.h"
#include "witan/report/page/page.h"

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

OutputFile report_page(fs::path path, std::string flag) {
  constexpr std::string_view kFooter = "<footer>Made by Witan from metrics.jsonl.";  // of page.html
  return {std::move(path), std::move(flag), "page",
          [](std::string_view bytes) { return bytes.find(kFooter) != std::string_view::npos; }};
}

MetricsFollower follow_for_report(const fs::path& run_folder) {
  constexpr MetricsFollower::Most kMost = {
      .steps = 4000, .experts = 125, .layers = 1000, .activations = 500, .gpus = 1000};
  return MetricsFollower(run_folder / "metrics.jsonl", kMost, MetricsFollower::OnDamage::left_out);
}

fs::path write_report(const fs::path& run_folder) {
  const fs::path recorded = run_folder / "metrics.jsonl";
  require<IoError>(fs::exists(recorded), recorded.string(), " does not exist: nothing was recorded of this run");
  MetricsFollower follower = follow_for_report(run_folder);
  follower.read_more();
  return write_report(run_folder, follower.metrics());
}

fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds) {
  const std::string page = render_report(run_folder, metrics, refresh_seconds);
  write_file_atomically(run_folder / "report.html", page);
  return run_folder / "report.html";
}

}  // namespace witan
