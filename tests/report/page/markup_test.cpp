#include "witan/report/page/markup.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace witan {
namespace {

TEST(Markup, EscapesHtml) {
  EXPECT_EQ(escape_html("<b a='1' c=\"2\"> & é"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt; &amp; é");
  EXPECT_EQ(escape_html(std::string("a\0\x1b\n\tb", 6)), "a\n\tb");
  EXPECT_EQ(escape_html("\xff"), "\xEF\xBF\xBD");
}

TEST(Markup, ScriptJsonCannotEndItsElementAndReadsBack) {
  const nlohmann::ordered_json json{{"text", "</script><!-- & <script>"}};
  const std::string text = script_json(json);
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos);
  EXPECT_EQ(nlohmann::ordered_json::parse(text), json);
  EXPECT_NO_THROW(script_json({{"text", "\xff"}}));
}

TEST(Markup, FillsPlaceholdersOnceOnly) {
  EXPECT_EQ(fill("<{{a}}|{{b}}|{{a}}>", {{"a", "{{b}}"}, {"b", "2"}}), "<{{b}}|2|{{b}}>");
  EXPECT_EQ(fill("plain {{", {}), "plain {{");
  EXPECT_THROW(fill("{{c}}", {{"a", ""}}), std::logic_error);
}

}  // namespace
}  // namespace witan
