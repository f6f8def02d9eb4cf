#include "witan/serve/tool_calls.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan::serve {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>", kPythonTag = "<|python_tag|>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr int kMostDepth = 32;

std::string_view without_space_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

std::string_view without_space(std::string_view text) {
  text = without_space_before(text);
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// Parses {"name": ..., ARGUMENTS: {...}} without further members.
std::optional<ToolCall> parse_call(std::string_view text, const char* arguments) {
  text = without_space(text);
  try {
    parse_json(text, "a call", kMostDepth);
  } catch (const CorruptionError&) {
    return {};
  }
  const Ordered call = Ordered::parse(text);
  const bool is_call = call.is_object() && call.size() == 2 && call.contains("name") && call["name"].is_string() &&
                       call.contains(arguments) && call[arguments].is_object();
  if (!is_call) return {};
  return ToolCall{call["name"], call[arguments].dump()};
}

// Returns no calls unless the whole text consists of calls.
std::vector<ToolCall> parse_hermes(std::string_view text) {
  std::vector<ToolCall> calls;
  for (text = without_space(text); !text.empty(); text = without_space(text)) {
    const size_t end = text.find(kEnd);
    if (!text.starts_with(kBegin) || end == std::string_view::npos) return {};
    const auto call = parse_call(text.substr(kBegin.size(), end - kBegin.size()), "arguments");
    if (!call) return {};
    calls.push_back(*call);
    text.remove_prefix(end + kEnd.size());
  }
  return calls;
}

std::vector<ToolCall> parse_llama3(std::string_view text) {
  text = without_space(text);
  if (text.starts_with(kPythonTag)) text.remove_prefix(kPythonTag.size());
  const auto call = parse_call(text, "parameters");
  return call ? std::vector{*call} : std::vector<ToolCall>();
}

std::vector<ToolCall> parse_calls(ToolFormat format, std::string_view text) {
  return format == ToolFormat::hermes ? parse_hermes(text) : parse_llama3(text);
}

// Bytes at the end of `text` that `mark` begins with.
size_t begun(std::string_view text, std::string_view mark) {
  size_t count = std::min(text.size(), mark.size() - 1);
  while (!text.ends_with(mark.substr(0, count))) --count;
  return count;
}

constexpr const char* kProbe = "look_up_the_probe";

bool is_probe(const std::vector<ToolCall>& calls) {
  return calls.size() == 1 && calls[0].name == kProbe && calls[0].arguments == R"({"number":12345})";
}

// The text from the last `begin` to the last `end`, since instructions before may contain them, too.
std::string_view between_last(std::string_view text, std::string_view begin, std::string_view end) {
  const size_t from = text.rfind(begin), to = text.rfind(end);
  if (from == std::string_view::npos || to == std::string_view::npos || to < from) return {};
  return text.substr(from, to + end.size() - from);
}

}  // namespace

std::optional<ToolFormat> find_tool_format(const RenderChat& render) {
  const Ordered tools = Ordered::parse(R"([{"type": "function", "function": {"name": "look_up_the_probe",
    "description": "Looks up a number.", "parameters": {"type": "object",
    "properties": {"number": {"type": "integer", "description": "the number"}}, "required": ["number"]}}}])");
  const Ordered question = Ordered::parse(R"([{"role": "user", "content": "Which one?"}])");
  const Ordered answer = Ordered::parse(R"({"role": "assistant", "content": "", "tool_calls": [{"id": "call12345",
    "type": "function", "function": {"name": "look_up_the_probe", "arguments": {"number": 12345}}}]})");
  try {
    if (render(question, tools).find(kProbe) == std::string::npos) return {};
    Ordered called = question;
    called.push_back(answer);
    const std::string text = render(called, tools);
    if (is_probe(parse_hermes(between_last(text, kBegin, kEnd)))) return ToolFormat::hermes;
    if (is_probe(parse_llama3(between_last(text, R"({"name")", "}")))) return ToolFormat::llama3;
  } catch (const DataError&) {  // the template does not support tools
  }
  return {};
}

std::string ToolCallReader::push(std::string_view text) {
  if (plain_) return std::string(text);
  withheld_ += text;
  if (calling_) return {};
  if (format_ == ToolFormat::hermes) {
    const size_t at = withheld_.find(kBegin);
    calling_ = at != std::string::npos;
    const size_t shown = calling_ ? at : withheld_.size() - begun(withheld_, kBegin);
    std::string out = withheld_.substr(0, shown);
    withheld_.erase(0, shown);
    return out;
  }
  const std::string_view said = without_space_before(withheld_);
  calling_ = said.starts_with('{') || said.starts_with(kPythonTag);
  if (calling_ || kPythonTag.starts_with(said)) return {};
  plain_ = true;
  return std::exchange(withheld_, {});
}

ToolCallReader::Rest ToolCallReader::finish() {
  Rest rest{std::exchange(withheld_, {}), {}};
  if (!calling_) return rest;
  rest.calls = parse_calls(format_, rest.text);
  const bool known = std::ranges::all_of(rest.calls, [&](const ToolCall& call) { return tools_.contains(call.name); });
  if (!known) rest.calls.clear();
  if (!rest.calls.empty()) rest.text.clear();
  return rest;
}

}  // namespace witan::serve
