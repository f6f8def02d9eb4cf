// Compares with Jinja as set up by Hugging Face: tests/golden/tokenizer/chat/make_golden.py made the expected texts.
#include "witan/tokenizer/chat/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/temp_folder.h"

namespace witan {
namespace {

using Json = nlohmann::ordered_json;

using test::message_of;

constexpr int64_t kNow = 1'721'952'000;  // as in make_golden.py

Json golden() {
  // Another file made by make_golden.py: templates of models, which we may not redistribute.
  const char* other = std::getenv("WITAN_CHAT_GOLDEN");
  return Json::parse(
      read_file(other ? fs::path(other) : fs::path(WITAN_SOURCE_DIR) / "tests/golden/tokenizer/chat/chat.json"));
}

void expect_golden(const std::string& source, const std::vector<ChatMessage>& messages,
                   const ChatTemplateOptions& options, const Json& expected) {
  SCOPED_TRACE(source.substr(0, 300));
  if (!expected.contains("text")) {
    EXPECT_THROW(ChatTemplate(source, "chat").render(messages, options), DataError) << expected;
    return;
  }
  try {
    const RenderedChat found = ChatTemplate(source, "chat").render_chat(messages, options);
    EXPECT_EQ(found.text, expected["text"].get<std::string>());
    std::vector<TextSpan> spans;
    if (expected.contains("generated"))
      for (const Json& span : expected["generated"]) spans.push_back({span[0].get<size_t>(), span[1].get<size_t>()});
    EXPECT_EQ(found.generated, spans);
  } catch (const DataError& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(ChatTemplate, RendersConversationsLikeJinja) {
  const Json all = golden();
  for (const Json& one : all["templates"]) {
    SCOPED_TRACE(one["name"]);
    for (const Json& test : one["cases"]) {
      SCOPED_TRACE(test.dump());
      std::vector<ChatMessage> messages;
      for (const Json& message : test["messages"]) messages.push_back({{}, {}, message.dump()});
      ChatTemplateOptions options{.add_generation_prompt = test["add_generation_prompt"].get<bool>(),
                                  .bos_token = "<s>",
                                  .eos_token = "</s>",
                                  .now = kNow};
      if (!test["tools"].is_null()) options.tools = test["tools"].dump();
      if (test.contains("enable_thinking")) options.variables = R"({"enable_thinking": false})";
      expect_golden(one["source"].get<std::string>(), messages, options, test["expected"]);
    }
  }
}

TEST(ChatTemplate, EvaluatesLikeJinja) {
  const Json all = golden();
  const ChatTemplateOptions options{.variables = all["variables"].get<std::string>(), .now = kNow};
  for (const Json& snippet : all["snippets"])
    expect_golden(snippet["source"].get<std::string>(), {}, options, snippet["expected"]);
}

std::string refusal(const std::string& source) {
  return message_of<DataError>([&] { ChatTemplate(source, "t.jinja").render({}); });
}

TEST(ChatTemplate, ViewsOfDictsAndRangesAreNotLists) {
  const auto rendered = [](const std::string& source) { return ChatTemplate(source, "t").render({}); };
  EXPECT_EQ(rendered("{{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() }}"),
            "dict_keys(['a']) dict_values([1]) dict_items([('a', 1)])");
  EXPECT_EQ(rendered("{{ range(3) }} {{ range(2, 1) }} {{ [range(9, 0, -2)] }}"),
            "range(0, 3) range(2, 1) [range(9, 0, -2)]");
  EXPECT_EQ(
      rendered("{{ range(2)|list }} {{ range(2) == [0, 1] }} {{ range(2) == range(0, 2) }} {{ {1: 2}.keys()|list }}"),
      "[0, 1] False True [1]");
  EXPECT_EQ(refusal("{{ {'a': 1}.keys()|tojson }}"),
            "t.jinja:1: tojson: a dict's view or a range has no JSON: write |list before |tojson");
}

TEST(ChatTemplate, KeepsRolesAndContentsUnchanged) {
  const ChatTemplate chat("{% for m in messages %}{{ m.role }}: {{ m.content|tojson }}\n{% endfor %}", "chat");
  const std::vector<ChatMessage> messages = {{"user", "a \"b\"\n{{ x }}"}, {"assistant", "é"}};
  EXPECT_EQ(chat.render(messages), "user: \"a \\\"b\\\"\\n{{ x }}\"\nassistant: \"é\"\n");
  EXPECT_EQ(message_of<DataError>([&] {
              chat.render(std::vector<ChatMessage>{{"user", "\xff"}});
            }),
            "a message's content is not valid UTF-8");
  EXPECT_EQ(message_of<DataError>([&] {
              chat.render(std::vector<ChatMessage>{{"", "", "[1]"}});
            }),
            "a message is a list, not a JSON object");
}

TEST(ChatTemplate, ErrorsNameUnknownConstructsAndTheirLine) {
  EXPECT_EQ(
      refusal("a\n{% include 'x' %}"),
      "t.jinja:2: the statement {% include %} is not supported: for, if, set, macro, filter, generation, raw, break "
      "and continue are");
  EXPECT_EQ(refusal("\n\n{{ x|tojsn }}"), "t.jinja:3: the filter tojsn is not supported (did you mean tojson?)");
  EXPECT_EQ(refusal("{{ x is strin }}"), "t.jinja:1: the test `is strin` is not supported (did you mean string?)");
  EXPECT_EQ(refusal("{% for x in y recursive %}{% endfor %}"), "t.jinja:1: recursive loops are not supported");
  EXPECT_EQ(refusal("{% for x in [1] %}{% macro f() %}{% endmacro %}{% endfor %}"),
            "t.jinja:1: a macro within a loop or another macro is not supported");
  EXPECT_EQ(refusal("{{ f(*x) }}"), "t.jinja:1: arguments with * are not supported");
  EXPECT_EQ(refusal("{{ 'x'\n.casefold() }}"), "t.jinja:2: the method casefold of a string is not supported");
  EXPECT_EQ(refusal("{{ '%c' % 3 }}"), "t.jinja:1: the format %c is not supported");
  EXPECT_EQ(refusal("{{ '{:n}'.format(3) }}"), "t.jinja:1: the format n is not supported");
  EXPECT_EQ(refusal("{{ '\\N{BULLET}' }}"),
            "t.jinja:1: \\N{…} in a string is not supported: write the character itself");
  EXPECT_EQ(refusal("{{ 18446744073709551615 * 2 }}"),
            "t.jinja:1: arithmetic with integers beyond 64 bits is not supported");
  EXPECT_EQ(refusal("{{ [].append(1) }}"),
            "t.jinja:1: the method append of a list is not supported: templates cannot change values");
  EXPECT_EQ(refusal("{{ [1]|tojson(separators=',') }}"),
            "t.jinja:1: tojson: separators must be two short strings: between items, and after keys");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(refusal("{% if x %}\n{{ y }}"), "t.jinja:2: the template ends where {% endif %} should be");
  EXPECT_EQ(refusal("{{ (1 }}"), "t.jinja:1: there is nothing that } closes");
  EXPECT_EQ(refusal("{{ 'a }}"), "t.jinja:1: a string is not closed");
  EXPECT_EQ(refusal("{{ x"), "t.jinja:1: a tag is not closed: there is no }}");
  EXPECT_EQ(refusal("{% endif %}"), "t.jinja:1: {% endif %} has no matching opening block");
  EXPECT_EQ(refusal("{{ 0xfffffffffffffffff }}"), "t.jinja:1: 0xfffffffffffffffff is not an integer of 64 bits");
  EXPECT_EQ(refusal("\n{{ a.b.c }}"), "t.jinja:2: a is undefined and has no attribute b");
  EXPECT_EQ(refusal("{{ 'a' + b }}"), "t.jinja:1: + does not take a string and b, which is undefined,");
  EXPECT_EQ(
      message_of<ConversationError>([] { ChatTemplate("\n{{ raise_exception('take turns') }}", "t").render({}); }),
      "t:2: take turns");
}

TEST(ChatTemplate, LimitsTheWorkOfATemplate) {
  const std::string much = "the template does more work than";
  const std::string twice = "{% set ns = namespace(x='abcdefgh') %}{% for i in range(100) %}";
  EXPECT_NE(refusal(twice + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}").find(much), std::string::npos);
  EXPECT_NE(refusal(twice + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}").find("larger than a template may build"),
            std::string::npos);
  EXPECT_NE(refusal("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}").find(much),
            std::string::npos);
  EXPECT_NE(refusal("{{ 'ab' * 99999999999 }}").find(much), std::string::npos);
  EXPECT_NE(refusal("{{ ('a' * 100000).replace('', 'b' * 100000) }}").find(much), std::string::npos);
  EXPECT_NE(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nested deeper than"), std::string::npos);
  EXPECT_NE(refusal("{{ " + std::string(5000, '(') + std::string(5000, ')') + " }}").find("nested deeper than"),
            std::string::npos);
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  EXPECT_NE(refusal(sum + " }}").find("operations in a row"), std::string::npos);
  EXPECT_NE(refusal("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}")
                .find("nested deeper than"),
            std::string::npos);
}

// A text that grows by 100 bytes in each round of nested loops is copied in each: n rounds take about 100 n^2 / 8 of
// the 2^24 operations; long messages raise that limit, up to 2^28.
TEST(ChatTemplate, CountsEachCopyOfTextGrownInLoops) {
  const auto rounds = [](int outer) {
    return "{% set ns = namespace(x='') %}{% for i in range(" + std::to_string(outer) +
           ") %}{% for j in range(100) %}{% set ns.x = ns.x ~ '" + std::string(100, 'a') +
           "' %}{% endfor %}{% endfor %}{{ ns.x|length }}";
  };
  const auto said = [&](int outer, size_t bytes) {
    const std::vector<ChatMessage> messages = {{.role = "user", .content = std::string(bytes, 'b'), .json = {}}};
    const ChatTemplate chat(rounds(outer), "t");
    try {
      return chat.render(messages);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(said(10, 0), "100000");
  EXPECT_NE(said(14, 0).find("more work than the 1677"), std::string::npos) << said(14, 0);
  EXPECT_EQ(said(14, 40'000), "140000");
  EXPECT_NE(said(99'999, 40'000).find("more work than the 270"), std::string::npos) << said(99'999, 40'000);
}

// Long messages raise the limit only up to a maximum: here, with 2 MiB, a single operation is refused before it begins.
TEST(ChatTemplate, LimitsOperationsForLongMessages) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = std::string(2 << 20, 'b'), .json = {}}};
  const ChatTemplate chat("{{ 'ab' * 99999999999 }}", "t");
  EXPECT_NE(message_of<DataError>([&] { chat.render(messages); }).find("more work than the 268435456 "),
            std::string::npos);
}

// The text, with bars around the parts that come from messages.
std::string with_marks(const RenderedChat& chat) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : chat.given) {
    text += chat.text.substr(at, span.begin - at) + "|" + chat.text.substr(span.begin, span.end - span.begin) + "|";
    at = span.end;
  }
  return text + chat.text.substr(at);
}

std::string marked(const std::string& source, const std::string& content = "a <b> c") {
  const std::vector<ChatMessage> messages = {{"user", content}};
  return with_marks(ChatTemplate("{% set c = messages[0].content %}" + source, "t").render_chat(messages));
}

// Whatever a template does with a message, the result counts as the message's text, and the rest as the template's.
TEST(ChatTemplate, TracksTextOfMessages) {
  EXPECT_EQ(marked("<x>{{ c }}<y>"), "<x>|a <b> c|<y>");
  EXPECT_EQ(marked("{{ '<x>' + c ~ '<y>' }}"), "<x>|a <b> c|<y>");
  EXPECT_EQ(marked("<{{ messages[0].role }}>"), "<user>") << "a role counts as the template's text";
  EXPECT_EQ(marked("{{ ('<x> ' + c + ' ')|trim }}<y>"), "<x> |a <b> c|<y>");
  EXPECT_EQ(marked("{{ c.split(' ')|join('<y>') }}"), "|a|<y>|<b>|<y>|c|");
  EXPECT_EQ(marked("{{ c|replace('<b>', '<y>') }}"), "|a |<y>| c|");
  EXPECT_EQ(marked("{{ c[2:5] }}<y>{{ c[::-1] }}"), "|<b>|<y>|c >b< a|");
  EXPECT_EQ(marked("{{ c|upper }}{{ '<y>'|upper }}"), "|A <B> C|<Y>");
  EXPECT_EQ(marked("{{ [c, '<y>']|tojson }}"), "[|\"a <b> c\"|, \"<y>\"]");
  EXPECT_EQ(marked("{{ {'k': c} }}"), "{'k': '|a <b> c|'}");
  EXPECT_EQ(marked("{{ '<y>%s<z>' % c }}{{ '<y>{}'.format(c) }}"), "<y>|a <b> c|<z><y>|a <b> c|");
  EXPECT_EQ(marked("{% set x %}<y>{{ c }}{% endset %}{{ x }}{% filter trim %} {{ c }}<y> {% endfilter %}"),
            "<y>|a <b> ca <b> c|<y>");
  EXPECT_EQ(marked("{% macro m(x) %}<y>{{ x }}{% endmacro %}{{ m(c) }}"), "<y>|a <b> c|");
  EXPECT_EQ(marked("{% for x in c.split(' ') %}<y>{{ x }}{% endfor %}"), "<y>|a|<y>|<b>|<y>|c|");
  EXPECT_EQ(marked("{{ ('<y>' + c)|indent(2) }}{{ '<y>'|e }}{{ c|e }}", "<\n"), "<y>|<|\n&lt;y&gt;|&lt;\n|")
      << "an indented line that is empty stays empty";
  EXPECT_EQ(marked("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}"),
            "role=user;content=|a <b> c|;");
}

TEST(ChatTemplate, TracksTextOfToolsVariablesAndOtherRoles) {
  const ChatTemplate chat("{{ bos_token }}{{ messages[0].role }}{{ tools[0].name }}{{ word }}{{ messages[0]|tojson }}",
                          "t");
  const std::vector<ChatMessage> messages = {
      {"", "", R"({"role": "<x>", "n": 12345678901234567890, "<k>": {"k": 1}})"}};
  const RenderedChat rendered = chat.render_chat(
      messages, {.bos_token = "<s>", .tools = R"([{"name": "<f>"}])", .variables = R"({"word": "<w>"})"});
  EXPECT_EQ(with_marks(rendered),
            "<s>|<x><f><w>|{\"role\": |\"<x>\"|, \"n\": 12345678901234567890, |\"<k>\"|: {|\"k\"|: 1}}")
      << "a name that is a plain word spells no token";
}

TEST(ChatTemplate, NamespacesMayContainThemselves) {
  EXPECT_EQ(ChatTemplate("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self == ns }}", "t").render({}),
            "True");
}

TEST(FindChatTemplate, ReadsFoldersOfHuggingFaceModelsAndRuns) {
  const test::TempFolder folder;
  EXPECT_FALSE(find_chat_template(folder.path()));
  write_file_atomically(folder / "special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "no"})");
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"chat_template": "config", "eos_token": {"content": "</s>"}})");
  auto found = find_chat_template(folder.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->chat.source(), "config");
  EXPECT_EQ(found->bos_token, "<s>");
  EXPECT_EQ(found->eos_token, "</s>");
  write_file_atomically(folder / "chat_template.jinja", "file");
  EXPECT_EQ(find_chat_template(folder.path())->chat.source(), "file");
  EXPECT_EQ(read_chat_template(folder / "tokenizer_config.json").chat.source(), "config");
  EXPECT_EQ(read_chat_template(folder / "chat_template.jinja").eos_token, "</s>");

  const fs::path run = folder / "run";
  fs::create_directories(run / "hf");
  write_file_atomically(run / "hf" / "chat_template.jinja", "of the run");
  EXPECT_EQ(find_chat_template(run)->chat.source(), "of the run");
}

TEST(FindChatTemplate, UsesTheDefaultOfSeveral) {
  const test::TempFolder folder;
  const fs::path config = folder / "tokenizer_config.json";
  write_file_atomically(config, R"({"chat_template": [{"name": "tool_use", "template": "a"},
                                                      {"name": "default", "template": "b"}]})");
  EXPECT_EQ(find_chat_template(folder.path())->chat.source(), "b");
  write_file_atomically(config, R"({"chat_template": [{"name": "tool_use", "template": "a"}]})");
  EXPECT_NE(message_of<DataError>([&] { find_chat_template(folder.path()); }).find("none is named \"default\""),
            std::string::npos);
}

// Each would take seconds or more: operations are counted by their cost, however they are written.
TEST(ChatTemplate, CountsWorkByItsCost) {
  const std::string much = "the template does more work than", text = "{% set s = 'aé' * 4000000 %}";
  for (const char* bomb : {"{{ s|upper|length }}", "{{ s.title()|length }}", "{{ s|list|length }}", "{{ s|first }}",
                           "{{ s|map('upper')|list|length }}", "{{ ''.join(s)|length }}", "{{ [s]|string|length }}",
                           "{% for c in s %}{% endfor %}", "{{ s|escape|length }}", "{{ s[::2]|length }}",
                           "{{ s|tojson|length }}{{ s|tojson|length }}{{ s|tojson|length }}{{ s|tojson|length }}"})
    EXPECT_NE(refusal(text + text + bomb + bomb).find(much), std::string::npos) << bomb;
  std::string entries = "{% set d = {";
  for (int i = 0; i < 4000; ++i) entries += "'key" + std::to_string(i) + "': 1, ";
  const std::string loop = "{% for i in range(99999) %}{% set x = d.nothing %}{% set x = d['nothing'] %}{% endfor %}";
  EXPECT_NE(refusal(entries + "} %}" + loop).find(much), std::string::npos);
}

TEST(ChatTemplate, CountsTheItemsOfALoop) {
  EXPECT_NE(
      refusal("{% set s = 'aé' * 500000 %}{% for i in range(24) %}{% for c in s %}{% break %}{% endfor %}{% endfor %}")
          .find("the template does more work than"),
      std::string::npos);
}

TEST(ChatTemplate, CountsTheOutputOfAJoin) {
  const std::string much = "the template does more work than";
  EXPECT_NE(refusal("{% set x = ('a' * 100000).join(['b'] * 9999) %}").find(much), std::string::npos);
  EXPECT_NE(refusal("{% set x = (['b'] * 9999) | join('a' * 100000) %}").find(much), std::string::npos);
}

std::string rendered_text(const std::string& source, const std::string& row) {
  return TextTemplate(source, "t").render(*jinja::from_json(row, "row").entries());
}

// Rendered like Jinja with keep_trailing_newline, without trim_blocks and lstrip_blocks.
TEST(TextTemplates, KeepWhiteSpace) {
  EXPECT_EQ(rendered_text("a\n", "{}"), "a\n");
  EXPECT_EQ(rendered_text("  {% if x %}\nb\n  {% endif %}\nc", R"({"x": 1})"), "  \nb\n  \nc");
  EXPECT_EQ(rendered_text("  {%- if x -%}\nb\n  {%- endif %}\nc", R"({"x": 1})"), "b\nc");
  EXPECT_EQ(rendered_text("{# c #}\nd", "{}"), "\nd");
}

TEST(TextTemplates, FieldsMustBeNames) {
  EXPECT_EQ(rendered_text("{{q}}: {{c.label.index(a)}} {{c.text}}", R"({"q": "é", "a": "B", "c": {"text": ["x", "it's"],
                     "label": ["A", "B"]}})"),
            "é: 1 ['x', \"it's\"]");
}

TEST(TextTemplates, RefuseUndefinedFields) {
  EXPECT_EQ(test::message_of<DataError>([] { rendered_text("a\n{{qq}}", R"({"q": 1})"); }), "t:2: qq is undefined");
  EXPECT_EQ(rendered_text("{% if qq is defined %}a{% endif %}{{qq | default('b')}}", R"({"q": 1})"), "b");
}

}  // namespace
}  // namespace witan
