// Parses tool calls in a model's output. Each family of models was trained on a format of its own, which its chat
// template shows. Two formats can be parsed unambiguously:
//
// hermes  <tool_call>{"name": NAME, "arguments": {...}}</tool_call>, one or several, after optional text
//         (NousResearch's Hermes, Qwen 2.5 and 3; github.com/NousResearch/Hermes-Function-Calling)
// llama3  {"name": NAME, "parameters": {...}} as the whole answer, after an optional <|python_tag|>
//         (Llama 3.1 and 3.2; github.com/meta-llama/llama-models, models/llama3_1/prompt_format.md)
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace witan::serve {

enum class ToolFormat : uint8_t { hermes, llama3 };

// Detects the format in which a chat template writes calls, by rendering one. `render` renders messages and tools
// (null: none) and may throw DataError. Returns nullopt if the template does not show tools to the model or uses
// another format.
using RenderChat =
    std::function<std::string(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools)>;
std::optional<ToolFormat> find_tool_format(const RenderChat& render);

struct ToolCall {
  std::string name, arguments;  // arguments as JSON text
};

// Separates calls from text while an answer is generated. Anything but a well-formed call of one of the tools is text.
class ToolCallReader {
 public:
  ToolCallReader(ToolFormat format, std::set<std::string> tools) : format_(format), tools_(std::move(tools)) {}

  // Takes the next text of the answer and returns all text that cannot be part of a call any more.
  std::string push(std::string_view text);
  struct Rest {
    std::string text;
    std::vector<ToolCall> calls;  // if there are calls, text is empty
  };
  Rest finish();

 private:
  const ToolFormat format_;
  const std::set<std::string> tools_;
  std::string withheld_;  // possibly the start of a call
  bool calling_ = false;  // a call has started
  bool plain_ = false;    // llama3: the answer is text
};

}  // namespace witan::serve
