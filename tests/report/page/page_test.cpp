#include "witan/report/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/synthetic.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Page, AFrozenOneAsksForNothingAndALiveOneItsServerAlone) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "a = 1\n");
  const std::string frozen = frozen_page(parts), live = live_page(parts, R"({"version":1,"runs":[]})");
  EXPECT_THAT(frozen, Not(HasSubstr("connect-src")));
  EXPECT_THAT(frozen, Not(HasSubstr("fetch(")));
  EXPECT_THAT(live, HasSubstr("default-src 'none'"));
  EXPECT_THAT(live, HasSubstr("; connect-src 'self'\">"));
  EXPECT_THAT(live, HasSubstr("fetch(\"update?"));
  EXPECT_THAT(live, HasSubstr(R"(id="live">{"version":1,"runs":[]}</script>)"));
  for (const std::string_view script : {assets::kControlsJs, assets::kLiveJs})
    EXPECT_EQ(script.find("</script"), std::string_view::npos);
}

TEST(Page, BothHaveTheSamePartsAndControls) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "");
  for (const std::string& page : {frozen_page(parts), live_page(parts, "{}")}) {
    for (const std::string& part : {parts.summary, parts.charts, parts.rest, script_json(parts.data)})
      EXPECT_THAT(page, HasSubstr(part));
    EXPECT_THAT(page, HasSubstr(R"(<div id="controls"></div>)"));
    EXPECT_THAT(page, HasSubstr(std::string(assets::kControlsJs)));
    EXPECT_THAT(page, Not(ContainsRegex(R"(\{\{[a-z_]+\}\})")));
  }
}

TEST(Page, ARunThatRecordedNothingHasItsName) {
  const PageParts parts = report_parts({}, "", "a<b");
  EXPECT_EQ(parts.title, "a<b · Witan");
  EXPECT_THAT(parts.summary, HasSubstr("<h1>a&lt;b</h1>\n<p class=\"facts\">nothing recorded</p>"));
  EXPECT_EQ(report_parts(synthetic::run(5, 0, 0), "", "b").title, "first-light · Witan") << "its metrics tell";
}

// On a narrow screen, where the values of several runs do not fit beside them.
TEST(Page, TheLabelsOfAComparisonStayWhileItsValuesAreScrolled) {
  const Metrics m = synthetic::run(5, 0, 0);
  const PageParts parts = comparison_parts({{"a", m}, {"b", m}}, {{"Latest", {{"step", {"5", "5"}}}}});
  EXPECT_THAT(parts.summary,
              ContainsRegex("<div class=\"card scroll compared\"><table>\n<thead><tr><th></th><th>a</th>"));
  EXPECT_THAT(
      std::string(assets::kStyleCss),
      AllOf(HasSubstr(".scroll th:first-child, .scroll td:first-child { position: sticky; left: 0;"),
            HasSubstr("  .compared th, .compared td { min-width: 92px; padding-left: 8px; white-space: normal;")));
}

TEST(Page, PartsAreJson) {
  Metrics m = synthetic::run(5, 0, 0);
  m.run->name = "\"</div>\xff";
  const auto json = nlohmann::json::parse(parts_json(report_parts(m, "")).dump());
  EXPECT_THAT(json["summary"].get<std::string>(), HasSubstr("&quot;&lt;/div&gt;\xEF\xBF\xBD"));
  EXPECT_THAT(json["charts"].get<std::string>(), HasSubstr("data-chart"));
}

}  // namespace
}  // namespace witan
