#include "witan/tokenizer/chat/text_template.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

std::string rendered(const std::string& source, const std::string& row) {
  return TextTemplate(source, "t").render(*jinja::from_json(row, "row").entries());
}

// As Jinja renders them with keep_trailing_newline, and neither trim_blocks nor lstrip_blocks.
TEST(TextTemplates, WhiteSpaceStandsAsItIs) {
  EXPECT_EQ(rendered("a\n", "{}"), "a\n");
  EXPECT_EQ(rendered("  {% if x %}\nb\n  {% endif %}\nc", R"({"x": 1})"), "  \nb\n  \nc");
  EXPECT_EQ(rendered("  {%- if x -%}\nb\n  {%- endif %}\nc", R"({"x": 1})"), "b\nc");
  EXPECT_EQ(rendered("{# c #}\nd", "{}"), "\nd");
}

TEST(TextTemplates, FieldsAreNames) {
  EXPECT_EQ(rendered("{{q}}: {{c.label.index(a)}} {{c.text}}", R"({"q": "é", "a": "B", "c": {"text": ["x", "it's"],
                     "label": ["A", "B"]}})"),
            "é: 1 ['x', \"it's\"]");
}

TEST(TextTemplates, WhatIsUndefinedIsNotPrinted) {
  EXPECT_EQ(test::message_of<DataError>([] { rendered("a\n{{qq}}", R"({"q": 1})"); }), "t:2: qq is undefined");
  EXPECT_EQ(rendered("{% if qq is defined %}a{% endif %}{{qq | default('b')}}", R"({"q": 1})"), "b");
}

}  // namespace
}  // namespace witan
