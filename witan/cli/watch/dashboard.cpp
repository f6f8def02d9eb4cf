#include "witan/cli/watch/dashboard.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/report/events/figures.h"
#include "witan/report/page/markup.h"
#include "witan/serve/access.h"
#include "witan/serve/http_framing.h"
#include "witan/train/state/run_folder.h"

namespace witan::cli {
namespace {

// The mean time in seconds of the steps of the last half minute, at least 20; 0 without steps. Otherwise a hiccup among
// 20 steps of milliseconds would dominate the predicted rest of the run.
double recent_step_time(const Metrics& metrics) {
  constexpr size_t kLeast = 20;
  constexpr double kSeconds = 30;
  size_t count = 0;
  double sum = 0;
  for (auto step = metrics.steps.rbegin(); step != metrics.steps.rend(); ++step) {
    if (count >= kLeast && sum >= kSeconds) break;
    sum += step->step_s;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

// Seconds per step for which training paused for evaluations and saves: a mean over all steps, since pauses are rare.
double pauses_per_step(const Metrics& metrics) {
  double sum = 0;
  for (const EvalEvent& evaluation : metrics.evals) sum += evaluation.seconds.value_or(0);
  for (const auto& [set, evaluations] : metrics.set_evals)
    for (const EvalEvent& evaluation : evaluations) sum += evaluation.seconds.value_or(0);
  for (const SaveEvent& save : metrics.saves) sum += save.paused_s;
  return sum / static_cast<double>(metrics.steps.back().step);
}

double seconds_since_written(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  if (error) return 0;
  return std::max(std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count(), 0.0);
}

std::string name_of_run(const fs::path& folder) {
  return replace_invalid_utf8(folder.filename().string());
}

std::string progress_of(const Metrics& metrics) {
  if (metrics.steps.empty()) return "no step yet";
  const int64_t step = metrics.steps.back().step;
  return metrics.run ? fmt::format("step {} of {}", step, metrics.run->total_steps) : fmt::format("step {}", step);
}

std::string time_left(const Metrics& metrics) {
  if (!metrics.run || metrics.steps.empty()) return "";
  const double steps = static_cast<double>(metrics.run->total_steps - metrics.steps.back().step);
  const double seconds = steps * (recent_step_time(metrics) + pauses_per_step(metrics));
  return seconds > 0 ? ", about " + format_duration(seconds) + " left" : "";
}

struct Standing {
  const char* state = "";
  std::string text;
};

// Says why a run without a process has no step.
std::string why_no_step(const fs::path& folder) {
  const std::string lost = lost_metrics(folder);
  if (lost.empty()) return "has not begun";
  const int64_t saved = newest_checkpoint_step(folder);
  return cat("has been trained, but its metrics.jsonl ", lost, ", so there is nothing to show",
             saved > 0 ? cat("; its newest checkpoint is of step ", saved) : "");
}

// The last known progress of a run whose files can no longer be read.
std::string known_last(const Metrics& metrics) {
  if (metrics.steps.empty()) return "";
  return cat(progress_of(metrics), metrics.end ? ", " + metrics.end->reason : "", "; ");
}

// The state of a run. Its lock distinguishes a slow run from one that was killed.
Standing standing_of(const fs::path& folder, const Metrics& metrics, const std::string& error) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored))
    return {"gone", cat(known_last(metrics), "its folder ", replace_invalid_utf8(folder.string()),
                        " is gone: it was moved or removed")};
  if (!error.empty()) return {"unreadable", known_last(metrics) + error};
  const std::string progress = progress_of(metrics);
  const double age = seconds_since_written(folder / "metrics.jsonl");
  const std::string ago = format_duration(std::max(age, 1.0));
  if (is_training(folder)) {
    if (is_silent(metrics, age)) return {"silent", fmt::format("{}, nothing recorded for {}", progress, ago)};
    return {"running", progress + time_left(metrics)};
  }
  if (metrics.end) return {"ended", fmt::format("{}, {}", progress, metrics.end->reason)};
  if (metrics.steps.empty()) return {"stopped", why_no_step(folder)};
  return {"stopped",
          fmt::format("{}, ended unexpectedly {} ago: it was killed, or train.log has the reason", progress, ago)};
}

std::string number_or_dash(const char* format, double value, bool known) {
  return known ? fmt::format(fmt::runtime(format), value) : "-";
}

// The latest values of each run.
ComparisonTable latest_table(const std::vector<ComparedRun>& runs) {
  ComparisonTable table{"Latest", {}};
  const auto add = [&](const char* what, const auto& value_of) {
    ComparisonTable::Row row{what, {}};
    for (const ComparedRun& run : runs) row.values.push_back(value_of(run.metrics));
    table.rows.push_back(std::move(row));
  };
  add("step", [](const Metrics& m) { return progress_of(m); });
  add("training loss", [](const Metrics& m) {
    return number_or_dash("{:.4f}", m.steps.empty() ? 0 : m.steps.back().loss, !m.steps.empty());
  });
  add("validation loss", [](const Metrics& m) {
    return number_or_dash("{:.4f}", m.evals.empty() ? 0 : m.evals.back().loss, !m.evals.empty());
  });
  const auto eval_reward = [](const Metrics& m) { return m.evals.empty() ? std::nullopt : m.evals.back().reward; };
  if (std::ranges::any_of(runs, [&](const ComparedRun& run) { return eval_reward(run.metrics).has_value(); }))
    add("eval reward", [&](const Metrics& m) {
      return number_or_dash("{:.4f}", eval_reward(m).value_or(0), eval_reward(m).has_value());
    });
  add("tokens per second, median step",
      [](const Metrics& m) { return m.steps.empty() ? "-" : format_count(run_speed(m).tokens_per_s); });
  add("parameters",
      [](const Metrics& m) { return m.run ? format_count(static_cast<double>(m.run->parameters)) : std::string("-"); });
  return table;
}

serve::HttpResponse with_headers(int status, std::string body, const char* type) {
  return {.status = status,
          .body = std::move(body),
          .content_type = type,
          .headers = {{"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}}};
}

serve::HttpResponse refusal(int status, const std::string& why) {
  return with_headers(status, why + "\n", "text/plain; charset=utf-8");
}

// The first value of this name in a query, if there is one. Neither secrets nor versions have characters that need
// escaping.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
  }
  return std::nullopt;
}

// The page's version; -1, which no page has, if the text is not a number.
int64_t known_version(std::string_view query) {
  const std::string_view text = query_value(query, "known").value_or("");
  int64_t version = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  return error == std::errc() && end == text.data() + text.size() ? version : -1;
}

// Smaller answers are not worth compressing.
serve::HttpResponse compressed(serve::HttpResponse response, const serve::HttpRequest& request) {
  constexpr size_t kLeast = 4 << 10;
  if (response.body.size() < kLeast || !serve::accepts_gzip(request.accept_encoding)) return response;
  response.body = serve::gzip(response.body);
  response.headers.emplace_back("Content-Encoding", "gzip");
  return response;
}

}  // namespace

bool is_silent(const Metrics& metrics, double age) {
  constexpr double kLeast = 60, kSteps = 20;  // seconds, steps: evaluations and checkpoints take as long as many steps
  return age > std::max(kLeast, kSteps * recent_step_time(metrics));
}

Dashboard::Dashboard(const std::vector<fs::path>& run_folders, std::chrono::milliseconds least_gap)
    : least_gap_(least_gap), last_read_(std::chrono::steady_clock::now() - least_gap) {
  for (const fs::path& folder : run_folders) runs_.push_back({folder, MetricsFollower(folder / "metrics.jsonl")});
  poll();
}

// While a file cannot be read, the page keeps what was read before.
void Dashboard::poll() {
  const auto now = std::chrono::steady_clock::now();
  if (plots_.version() > 0 && now - last_read_ < least_gap_) return;
  last_read_ = now;
  bool changed = plots_.version() == 0;
  for (Run& run : runs_) {
    try {
      changed = run.follower.read_more() || changed;
      run.error.clear();
    } catch (const Error& error) {
      run.error = error.what();
    }
  }
  if (!changed) return;
  PageParts fresh = parts();
  plots_.push(std::exchange(fresh.data, {}));
  const auto before = parts_json(parts_), after = parts_json(fresh);
  for (const auto& [name, html] : after.items())
    if (plots_.version() == 1 || html != before[name]) part_versions_[name] = plots_.version();
  parts_ = std::move(fresh);
}

PageParts Dashboard::parts() const {
  constexpr uint64_t kMostConfig = uint64_t{1} << 20;
  if (runs_.size() == 1) {
    const fs::path config = runs_[0].folder / "config.toml";
    std::error_code error;
    return report_parts(runs_[0].follower.metrics(),
                        fs::is_regular_file(config, error) ? read_file(config, kMostConfig) : "",
                        name_of_run(runs_[0].folder), step_answers(runs_[0].folder));
  }
  std::vector<ComparedRun> compared;
  for (const Run& run : runs_) compared.push_back({name_of_run(run.folder), run.follower.metrics()});
  return comparison_parts(compared, {latest_table(compared)});
}

nlohmann::ordered_json Dashboard::standing() const {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const Run& run : runs_) {
    const Standing standing = standing_of(run.folder, run.follower.metrics(), run.error);
    runs.push_back({{"name", name_of_run(run.folder)}, {"state", standing.state}, {"text", standing.text}});
  }
  return runs;
}

nlohmann::ordered_json Dashboard::changed_parts(int64_t known) const {
  const auto all = parts_json(parts_);
  auto changed = nlohmann::ordered_json::object();
  for (const auto& [name, html] : all.items())
    if (part_versions_.at(name) > known) changed[name] = html;
  return changed;
}

std::string Dashboard::page() {
  const MutexLock lock(mutex_);
  poll();
  PageParts whole = parts_;
  whole.data = plots_.data();
  return live_page(whole, script_json({{"version", plots_.version()}, {"runs", standing()}}));
}

std::string Dashboard::update(int64_t known) {
  const MutexLock lock(mutex_);
  poll();
  nlohmann::ordered_json json{{"version", plots_.version()}, {"runs", standing()}};
  if (!plots_.remembers(known)) {
    json["parts"] = parts_json(parts_);
    json["data"] = plots_.data();
  } else if (known != plots_.version()) {
    json["parts"] = changed_parts(known);
    json["changes"] = plots_.since(known);
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

serve::HttpResponse WatchService::answer(const serve::HttpRequest& request) {
  if (const auto why = serve::foreign_request(request)) return refusal(403, *why);
  if (!serve::same_secret(query_value(request.query, "token").value_or(""), secret_))
    return refusal(403, "the address needs its token, as `witan watch` printed it: http://127.0.0.1:PORT/?token=...");
  if (request.path != "/" && request.path != "/update")
    return refusal(404, cat("there is no ", clipped(request.path), ": this server has / and /update"));
  if (request.method != "GET" && request.method != "HEAD") {
    serve::HttpResponse response =
        refusal(405, cat(request.path, " takes GET and HEAD, not ", clipped(request.method)));
    response.allow = "GET, HEAD";
    return response;
  }
  return compressed(request.path == "/"
                        ? with_headers(200, dashboard_.page(), "text/html; charset=utf-8")
                        : with_headers(200, dashboard_.update(known_version(request.query)), "application/json"),
                    request);
}

}  // namespace witan::cli
