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

struct AnswerFile {
  int64_t step = 0;
  fs::path file;
};

// The file of the newest step; files that are still being written have other names.
std::optional<AnswerFile> newest_answers(const fs::path& folder) {
  std::optional<AnswerFile> newest;
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(kStepFile)) continue;
    const auto [rest, error] = std::from_chars(name.data() + kStepFile.size(), name.data() + name.size(), step);
    if (error != std::errc() || std::string_view(rest) != ".jsonl") continue;
    if (!newest || step > newest->step) newest = AnswerFile{step, entry->path()};
  }
  return newest;
}

// All turns of a conversation, each after its role, or one answer.
std::string text_of(const Json& rollout) {
  std::string text;
  if (rollout.contains("messages") && rollout.at("messages").size() > 1)
    for (const Json& message : rollout.at("messages")) {
      const Json content = message.value("content", Json());
      text += fmt::format("\n[{}] {}", message.at("role").get<std::string>(),
                          content.is_string() ? content.get<std::string>() : content.dump());
    }
  return text.empty() ? rollout.at("completion").get<std::string>() : text;
}

// Adds a line's answer to the counts and, unless it was discarded, to the answers that may be shown.
void add_answer(StepAnswers& step, std::string_view line) try {
  const Json read = parse_json(line, "a rollout");
  ShownAnswer answer;
  read.at("row").get_to(answer.row);
  read.at("prompt").get_to(answer.prompt);
  answer.completion = text_of(read);
  read.at("reward").get_to(answer.reward);
  if (read.value("discarded", false)) {
    ++step.discarded;
    return;
  }
  ++step.answers;
  if (read.value("skipped", false)) ++step.skipped;
  step.shown.push_back(std::move(answer));
} catch (const std::exception&) {
  return;  // it is no rollout
}

std::vector<ShownAnswer> chosen_of(std::vector<ShownAnswer> all) {
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
}

// A clause such as ": 8 of 64 are skipped, since …"; empty if none is skipped or discarded.
std::string counts_of(const StepAnswers& answers) {
  if (answers.skipped + answers.discarded == 0) return "";
  std::string out = fmt::format(": {} of {} are skipped, since all rewards to their prompts are equal", answers.skipped,
                                answers.answers);
  if (answers.discarded > 0) out += fmt::format(", and {} more were discarded for this reason", answers.discarded);
  return out;
}

}  // namespace

StepAnswers step_answers(const fs::path& run_folder) try {
  const std::optional<AnswerFile> newest = newest_answers(run_folder / "rollouts");
  if (!newest) return {};
  StepAnswers step{.step = newest->step};
  for (LinesForward lines(newest->file); lines.next();) add_answer(step, lines.line());
  step.shown = chosen_of(std::move(step.shown));
  return step;
} catch (const Error&) {
  return {};  // a file that cannot be read hides no other part of the page
}

std::string answer_section(const StepAnswers& answers) {
  if (answers.shown.empty()) return "";
  std::string out = fmt::format(
      "<section>\n<h2>Sampled answers</h2>\n<p class=\"note\">Of step {}{}; the folder rollouts has all</p>\n",
      answers.step, counts_of(answers));
  for (const ShownAnswer& answer : answers.shown)
    out += fmt::format(
        "<div class=\"card\"><p class=\"when\">The {} one, reward {:.4g}: answer {} to the prompt in bold</p>"
        "<blockquote><span class=\"prompt\">{}</span>{}</blockquote></div>\n",
        answer.what, answer.reward, answer.row, escape_html(answer.prompt), escape_html(answer.completion));
  return out + "</section>\n";
}

}  // namespace witan
