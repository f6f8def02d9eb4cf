#include "witan/report/chrome_trace.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", kTail = "\n]}\n";

std::string in_braces(const ChromeTrace::Args& args) {
  std::string text;
  for (const auto& [key, value] : args) text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", key, value);
  return "{" + text + "}";
}

}  // namespace

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ChromeTrace::ChromeTrace(int process, std::string_view name, int64_t origin_ns)
    : process_(process), origin_ns_(origin_ns) {
  add(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", process_, json_text(name)));
  add(fmt::format(R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})", process_));
}

void ChromeTrace::add(const std::string& event) {
  events_ += (events_.empty() ? "" : ",\n") + event;
}

std::string ChromeTrace::moment(int64_t ns) const {
  return fmt::format("{:.3f}", static_cast<double>(ns - origin_ns_) * 1e-3);
}

void ChromeTrace::name_track(int track, std::string_view name) {
  add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", process_, track,
                  json_text(name)));
  add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", process_,
                  track, track));
}

void ChromeTrace::slice(int track, std::string_view name, int64_t begin_ns, int64_t end_ns, const Args& args) {
  add(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{:.3f},"name":{},"args":{}}})", process_, track,
                  moment(begin_ns), static_cast<double>(end_ns - begin_ns) * 1e-3, json_text(name), in_braces(args)));
}

void ChromeTrace::counter(std::string_view name, int64_t at_ns, const Args& series) {
  add(fmt::format(R"({{"ph":"C","pid":{},"ts":{},"name":{},"args":{}}})", process_, moment(at_ns), json_text(name),
                  in_braces(series)));
}

std::string ChromeTrace::json() const {
  return fmt::format("{}{}{}", kHead, events_, kTail);
}

void merge_chrome_traces(const std::vector<fs::path>& from, const fs::path& to) {
  std::string all(kHead);
  for (const fs::path& path : from) {
    const std::string text = read_file(path);
    require<CorruptionError>(text.starts_with(kHead) && text.ends_with(kTail), path.string(),
                             ": this is not a trace written by Witan");
    const std::string_view events =
        std::string_view(text).substr(kHead.size(), text.size() - kHead.size() - kTail.size());
    if (events.empty()) continue;
    if (all.size() > kHead.size()) all += ",\n";
    all += events;
  }
  write_file_atomically(to, all.append(kTail));
}

}  // namespace witan
