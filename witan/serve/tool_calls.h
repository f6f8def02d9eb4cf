// Calls of tools in what a model says. Each family of models was trained to write them in a form of its own, which its
// chat template shows; two forms can be read without doubt:
//
// hermes  <tool_call>{"name": NAME, "arguments": {…}}</tool_call>, one or several, perhaps behind other text
//         (NousResearch's Hermes, Qwen 2.5 and 3; github.com/NousResearch/Hermes-Function-Calling)
// llama3  {"name": NAME, "parameters": {…}} as the whole answer, perhaps behind <|python_tag|>
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

// How a chat template writes calls, found by giving it one. `render` makes text of messages and tools (null: none), and
// may throw DataError. Nothing: the template shows no tools to the model, or writes calls in another form.
using RenderChat =
    std::function<std::string(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools)>;
std::optional<ToolFormat> find_tool_format(const RenderChat& render);

struct ToolCall {
  std::string name, arguments;  // these as JSON text
};

// Tells calls from text while an answer grows. What is not in every respect a call of one of the tools is text.
class ToolCallReader {
 public:
  ToolCallReader(ToolFormat format, std::set<std::string> tools) : format_(format), tools_(std::move(tools)) {}

  // The text that is certainly no part of a call, now that the answer goes on like this.
  std::string push(std::string_view text);
  struct Rest {
    std::string text;
    std::vector<ToolCall> calls;  // with calls there is no text
  };
  Rest finish();

 private:
  const ToolFormat format_;
  const std::set<std::string> tools_;
  std::string withheld_;  // the beginning of a call, perhaps
  bool calling_ = false;  // it is one
  bool plain_ = false;    // of llama3: the answer is text
};

}  // namespace witan::serve
