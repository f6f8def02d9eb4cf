#include "witan/fetch/retry.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <regex>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::fetch {

bool is_refused_elsewhere(const HttpResult& result, const std::string& hub) {
  const bool refused = result.status == 400 || result.status == 401 || result.status == 403;
  return refused && result.failure.empty() && !hub.empty() && origin_of(result.url) != hub;
}

bool is_transient(const HttpResult& result, const std::string& hub) {
  static constexpr std::array kStatuses = {408, 425, 429, 500, 502, 503, 504};
  if (!result.failure.empty()) return !result.permanent;
  if (is_refused_elsewhere(result, hub)) return true;
  return std::ranges::find(kStatuses, result.status) != kStatuses.end();
}

std::optional<double> retry_after_seconds(const HttpResult& result) {
  constexpr double kMostSeconds = 3600;
  std::string text = result.header("retry-after");
  if (text.empty() && result.status == 429) {
    static const std::regex window(R"(;\s*t\s*=\s*(\d+))");
    std::smatch match;
    const std::string limit = result.header("ratelimit");
    if (limit.size() < 1024 && std::regex_search(limit, match, window)) text = match[1].str();
  }
  if (text.empty()) return std::nullopt;
  double seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    const time_t date = ::curl_getdate(text.c_str(), nullptr);
    if (date == -1) return std::nullopt;
    seconds = static_cast<double>(date - std::time(nullptr));
  }
  if (!std::isfinite(seconds)) return std::nullopt;
  return std::clamp(seconds, 0.0, kMostSeconds);
}

double wait_seconds(const RetryOptions& options, int failures, const HttpResult& result, std::mt19937& random) {
  const double doubled = std::min(options.most_seconds, options.first_seconds * std::exp2(std::min(failures - 1, 30)));
  const double shortened = doubled * std::uniform_real_distribution<double>(0.5, 1)(random);
  return std::max(shortened, retry_after_seconds(result).value_or(0));
}

std::string retry_note(const HttpResult& result, double seconds, int failures, const RetryOptions& options) {
  return cat(result.url, ": ", result.failure.empty() ? cat("status ", result.status) : result.failure,
             "; retrying in ", format_duration(seconds), " (", failures, " of ", options.retries, ")");
}

}  // namespace witan::fetch
