#include "witan/serve/tool_calls.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan {
namespace {

using nlohmann::ordered_json;
using serve::ToolCallReader;
using serve::ToolFormat;

std::optional<ToolFormat> format_of(const std::string& source) {
  const ChatTemplate chat(source, "template");
  return serve::find_tool_format([&](const ordered_json& messages, const ordered_json& tools) {
    std::vector<ChatMessage> list;
    for (const auto& message : messages) list.push_back({.role = {}, .content = {}, .json = message.dump()});
    return chat.render(list, {.add_generation_prompt = true, .tools = tools.is_null() ? "" : tools.dump()});
  });
}

// Own templates in the formats of published models.
const std::string kTools = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}";
const std::string kInstruction = "Say <tool_call>{\"name\": NAME, \"arguments\": {}}</tool_call>.\n";
const std::string kMessages = "{% for m in messages %}<{{ m.role }}>{{ m.content }}";
const std::string kEnd = "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

std::string calling(const std::string& written) {
  return "{% for call in m.tool_calls or [] %}{% set f = call.function %}" + written + "{% endfor %}";
}

const std::string kHermes =
    kTools + kInstruction + kMessages +
    calling("\n<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>") +
    kEnd;
const std::string kLlama3 = kTools + "{# Say {\"name\": …, \"parameters\": …}. #}" + kMessages +
                            calling("{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}") + kEnd;

TEST(ToolFormats, AreDetectedFromTheOutputOfTemplates) {
  EXPECT_EQ(format_of(kHermes), ToolFormat::hermes);
  EXPECT_EQ(format_of(kLlama3), ToolFormat::llama3);
  EXPECT_EQ(format_of(kTools + kMessages + calling("<tool_call>{{ f | tojson }}</tool_call>") + kEnd),
            ToolFormat::hermes);
}

TEST(ToolFormats, AreNotDetectedIfUnreadable) {
  EXPECT_EQ(format_of(kMessages + kEnd), std::nullopt) << "without tools";
  EXPECT_EQ(format_of(kTools + kInstruction + kMessages + kEnd), std::nullopt) << "without calls";
  EXPECT_EQ(format_of(kMessages + calling("<tool_call>{{ f | tojson }}</tool_call>") + kEnd), std::nullopt)
      << "calls without a list of tools";
  EXPECT_EQ(format_of(kTools + kMessages + calling("[TOOL_CALLS][{{ f | tojson }}]") + kEnd), std::nullopt);
  EXPECT_EQ(
      format_of(kTools + kMessages +
                calling("<tool_call><function={{ f.name }}>{{ f.arguments | tojson }}</function></tool_call>") + kEnd),
      std::nullopt);
  EXPECT_EQ(format_of("{{ raise_exception('no tools') }}"), std::nullopt);
}

// WITAN_CHAT_TEMPLATES=FOLDER prints the formats found in a folder of templates such as llama.cpp's models/templates.
TEST(ToolFormats, AreDetectedInPublishedTemplates) {
  const char* folder = std::getenv("WITAN_CHAT_TEMPLATES");
  if (!folder) GTEST_SKIP() << "WITAN_CHAT_TEMPLATES is not a folder with *.jinja";
  size_t found = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const auto format = format_of(read_file(entry.path()));
    found += format.has_value();
    printf("%s: %s\n", entry.path().filename().c_str(),
           !format                         ? "none"
           : *format == ToolFormat::hermes ? "hermes"
                                           : "llama3");
  }
  EXPECT_GT(found, 0u);
}

struct Read {
  std::string text;   // complete text
  std::string early;  // text before the end
  std::vector<std::string> calls;
};

Read read(ToolFormat format, const std::string& said, size_t piece) {
  ToolCallReader reader(format, {"f", "g"});
  Read out;
  for (size_t at = 0; at < said.size(); at += piece) out.early += reader.push(std::string_view(said).substr(at, piece));
  auto rest = reader.finish();
  out.text = out.early + rest.text;
  for (const auto& call : rest.calls) out.calls.push_back(call.name + call.arguments);
  return out;
}

using Calls = std::vector<std::string>;

// The result is independent of how the answer is split.
void expect_read(ToolFormat format, const std::string& said, const std::string& text, const Calls& calls) {
  for (const size_t piece : {size_t{1}, size_t{3}, said.size()}) {
    const Read got = read(format, said, piece);
    EXPECT_EQ(got.text, text) << said << " in pieces of " << piece;
    EXPECT_EQ(got.calls, calls) << said << " in pieces of " << piece;
  }
}

TEST(HermesCalls, AreReadAfterText) {
  const auto expect = [](const std::string& said, const std::string& text, const Calls& calls) {
    expect_read(ToolFormat::hermes, said, text, calls);
  };
  const std::string f = R"(<tool_call>{"name": "f", "arguments": {"z": 1, "a": "é"}}</tool_call>)";
  const std::string g = "<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>";
  expect(f, "", {R"(f{"z":1,"a":"é"})"});
  expect("Let me see.\n" + f + "\n" + g + "\n", "Let me see.\n", {R"(f{"z":1,"a":"é"})", "g{}"});
  expect("a < b, <tool_box> and <tool_cal", "a < b, <tool_box> and <tool_cal", {});
}

// An incomplete or invalid call, or a call of an unknown tool, remains text.
TEST(HermesCalls, RemainTextIfIncomplete) {
  for (const std::string said :
       {R"(<tool_call>{"name": "f", "arguments": {}})", R"(<tool_call>{"name": "h", "arguments": {}}</tool_call>)",
        R"(<tool_call>{"name": "f"}</tool_call>)", R"(<tool_call>{"name": "f", "arguments": "{}"}</tool_call>)",
        R"(<tool_call>{"name": "f", "arguments": {}}</tool_call> and more)",
        R"(<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>)",
        R"(<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{)", "<tool_call></tool_call>",
        R"(<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>)"})
    expect_read(ToolFormat::hermes, said, said, {});
  expect_read(ToolFormat::hermes, "<tool_call>" + std::string(10000, '['), "<tool_call>" + std::string(10000, '['), {});
}

TEST(Llama3Calls, AreCompleteAnswers) {
  const auto expect = [](const std::string& said, const std::string& text, const Calls& calls) {
    expect_read(ToolFormat::llama3, said, text, calls);
  };
  expect(R"({"name": "f", "parameters": {"a": [1]}})", "", {R"(f{"a":[1]})"});
  expect("\n<|python_tag|>{\"name\": \"g\", \"parameters\": {}}\n", "", {"g{}"});
  for (const std::string said :
       {R"(So {"name": "f", "parameters": {}})", R"({"name": "f", "parameters": {}} so)", R"({"name": "f"})",
        R"({"name": "h", "parameters": {}})", "<|python_tag|>print(1)", "", "\n", "{"})
    expect(said, said, {});
}

// A streaming client waits for text only while it might be a call.
TEST(ToolCalls, TextIsShownOnceItCannotBeACall) {
  EXPECT_EQ(read(ToolFormat::hermes, "a < b <tool_ca", 1).early, "a < b ");
  EXPECT_EQ(read(ToolFormat::hermes, "a <tool_call>{}", 1).early, "a ");
  EXPECT_EQ(read(ToolFormat::llama3, " <|py", 1).early, "");
  EXPECT_EQ(read(ToolFormat::llama3, " So {", 1).early, " So {");
}

}  // namespace
}  // namespace witan
