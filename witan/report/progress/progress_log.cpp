#include "witan/report/progress/progress_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/report/progress/log_lines.h"

namespace witan {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// What stands behind "NAME: ", as a number; nothing where the line is not like that.
std::optional<double> number_behind(std::string_view field, std::string_view name) {
  if (!field.starts_with(name) || !field.substr(name.size()).starts_with(": ")) return std::nullopt;
  const std::string digits(field.substr(name.size() + 2));
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (end == digits.c_str() || *end != '\0') return std::nullopt;
  return value;
}

std::optional<std::time_t> parse_time(std::string_view text) {
  std::tm local{};
  local.tm_isdst = -1;
  const std::string copy(text);
  const char* end = ::strptime(copy.c_str(), "%Y-%m-%d %H:%M:%S", &local);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::mktime(&local);
}

// The first job on so many ranks since the last on another number of them, as the file's lines tell. Lines that are
// none of ours, a torn last one say, count for nothing.
std::optional<ProgressLog::Since> find_series(std::string_view text, int64_t ranks) {
  std::optional<ProgressLog::Since> series;
  double saved = 0;  // FLOPs done at the last checkpoint
  for (const std::string_view line : split(text, '\n')) {
    const auto fields = split(line, '\t');
    if (fields.size() < 4) continue;
    const auto world = number_behind(fields[2], "# GPUs");
    if (!world) continue;
    if (fields[3] == "Saved checkpoint" && fields.size() > 7)
      saved = number_behind(fields[7], "Floating-point operations").value_or(saved);
    if (*world != static_cast<double>(ranks)) {
      series.reset();
    } else if (fields[3] == "Starting job" && !series) {
      if (const auto time = parse_time(fields[0])) series = ProgressLog::Since{*time, saved};
    }
  }
  return series;
}

}  // namespace

ProgressLog::ProgressLog(const fs::path& path, int64_t ranks, double iteration_flops)
    : file_(path), ranks_(ranks), iteration_flops_(iteration_flops) {
  if (file_.size() > 0 && read_file(path).back() != '\n') file_.append("\n");  // a torn line stays one
}

void ProgressLog::start(std::time_t now, double batches) {
  job_ = {now, iteration_flops_ * batches};
  append(now, "Starting job");
  series_ = find_series(read_file(file_.path()), ranks_).value_or(job_);
}

void ProgressLog::saved(std::time_t now, const Done& done) {
  const double flops = iteration_flops_ * done.batches;
  const auto tflops_since = [&](const Since& since) {
    const double seconds = std::max(std::difftime(now, since.time), 1.0);  // times are whole seconds
    return (flops - since.flops) / (seconds * 1e12 * static_cast<double>(ranks_));
  };
  append(now, fmt::format("Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: "
                          "{:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
                          done.iteration, tflops_since(job_), tflops_since(series_), flops,
                          static_cast<double>(done.tokens) / 1e9));
}

void ProgressLog::append(std::time_t now, const std::string& text) {
  const char* job = std::getenv("SLURM_JOB_ID");
  file_.append(
      fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", megatron_log::format_time(now), job ? job : "", ranks_, text));
}

}  // namespace witan
