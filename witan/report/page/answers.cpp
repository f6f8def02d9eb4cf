#include "witan/report/page/answers.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/files/line_file.h"
#include "witan/base/json.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

constexpr std::string_view kStepFile = "step-";

struct StepAnswers {
  int64_t step = 0;
  fs::path file;
};

// The file of the newest step; files that are still being written have other names.
std::optional<StepAnswers> newest_answers(const fs::path& folder) {
  std::optional<StepAnswers> newest;
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(kStepFile)) continue;
    const auto [rest, error] = std::from_chars(name.data() + kStepFile.size(), name.data() + name.size(), step);
    if (error != std::errc() || std::string_view(rest) != ".jsonl") continue;
    if (!newest || step > newest->step) newest = StepAnswers{step, entry->path()};
  }
  return newest;
}

std::optional<ShownAnswer> answer_of(std::string_view line, int64_t step) {
  try {
    const Json read = parse_json(line, "a rollout");
    ShownAnswer answer;
    answer.step = step;
    read.at("row").get_to(answer.row);
    read.at("prompt").get_to(answer.prompt);
    read.at("completion").get_to(answer.completion);
    read.at("reward").get_to(answer.reward);
    return answer;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<ShownAnswer> shown_answers(const fs::path& run_folder) try {
  const std::optional<StepAnswers> newest = newest_answers(run_folder / "rollouts");
  if (!newest) return {};
  std::vector<ShownAnswer> all;
  for (LinesForward lines(newest->file); lines.next();)
    if (auto answer = answer_of(lines.line(), newest->step)) all.push_back(std::move(*answer));
  if (all.empty()) return {};
  std::ranges::stable_sort(all, {}, &ShownAnswer::row);
  std::vector<ShownAnswer> shown;
  const auto show = [&](const ShownAnswer& answer, const char* what) {
    if (std::ranges::find(shown, answer.row, &ShownAnswer::row) != shown.end()) return;
    shown.push_back(answer);
    shown.back().what = what;
  };
  show(*std::ranges::max_element(all, {}, &ShownAnswer::reward), "best");
  show(*std::ranges::min_element(all, {}, &ShownAnswer::reward), "worst");
  constexpr ptrdiff_t kNewest = 2;
  ptrdiff_t prompts = 0;
  for (auto answer = all.rbegin(); answer != all.rend() && prompts < kNewest; ++answer)
    if (answer == all.rbegin() || answer->prompt != std::prev(answer)->prompt) show(*answer, "newest"), ++prompts;
  return shown;
} catch (const Error&) {
  return {};  // a file that cannot be read hides no other part of the page
}

std::string answer_section(const std::vector<ShownAnswer>& answers) {
  if (answers.empty()) return "";
  std::string out = fmt::format(
      "<section>\n<h2>Sampled answers</h2>\n<p class=\"note\">Of step {}; the folder rollouts has all</p>\n",
      answers.front().step);
  for (const ShownAnswer& answer : answers)
    out += fmt::format(
        "<div class=\"card\"><p class=\"when\">The {} one, reward {:.4g}: answer {} to the prompt in bold</p>"
        "<blockquote><span class=\"prompt\">{}</span>{}</blockquote></div>\n",
        answer.what, answer.reward, answer.row, escape_html(answer.prompt), escape_html(answer.completion));
  return out + "</section>\n";
}

}  // namespace witan
