#include "witan/report/page/plot_history.h"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "report/synthetic.h"
#include "witan/report/page/charts.h"

namespace witan {
namespace {

using nlohmann::ordered_json;
using test::changed_data;

ordered_json chart_of(const char* title, const ordered_json& points) {
  return {{"title", title}, {"series", {{{"name", "a"}, {"points", points}}}}};
}

ordered_json data_of(const std::vector<ordered_json>& charts, int64_t last) {
  return {{"steps", {1, last}}, {"charts", charts}};
}

TEST(PlotHistory, SendsOnlyTheNewEndOfAGrowingList) {
  PlotHistory history;
  EXPECT_EQ(history.version(), 0);
  history.push(data_of({chart_of("Loss", {{1, 9}, {2, 8}, {3, 7}})}, 3));
  history.push(data_of({chart_of("Loss", {{1, 9}, {2, 8}, {3, 6}, {4, 5}})}, 4));
  EXPECT_EQ(history.version(), 2);
  const ordered_json changes = history.since(1);
  EXPECT_EQ(changes["charts"][0]["title"], "Loss");
  EXPECT_EQ(changes["charts"][0]["series"][0]["points"],
            ordered_json::parse(R"({"keep": 2, "then": [[3, 6], [4, 5]]})"));
  EXPECT_EQ(changes["steps"], ordered_json::parse(R"({"keep": 1, "then": [4]})"));
  EXPECT_EQ(history.since(2)["charts"][0]["series"][0]["points"], ordered_json::parse(R"({"keep": 4, "then": []})"));
}

// Curves that grow, are truncated by a resumed run, move, disappear, reappear, and are empty.
TEST(PlotHistory, ChangesTurnEveryVersionIntoTheNewest) {
  const std::vector<ordered_json> versions = {
      data_of({}, 0),
      data_of({chart_of("Loss", {{1, 9}})}, 1),
      data_of({chart_of("Loss", {{1, 9}, {2, 8}, {3, 7}, {4, 6}})}, 4),
      data_of({chart_of("Validation", {{2, 3}}), chart_of("Loss", {{1, 9}, {2, 8}, {3, 7}, {4, 6}})}, 4),
      data_of({chart_of("Validation", {{2, 3}}), chart_of("Loss", {{1, 9}, {2, 8}, {3, 6.5}})}, 3),
      data_of({chart_of("Loss", {{1, 9}, {2, 8}, {3, 6.5}})}, 3),
      data_of({chart_of("Validation", {{2, 3}}), chart_of("Loss", {{1, 9}, {2, 8}, {3, 6.5}, {4, 6}})}, 4),
      data_of({chart_of("Validation", ordered_json::array())}, 4),
      data_of({}, 0),
      data_of({chart_of("Loss", {{1, 9}, {2, 8}})}, 2),
  };
  PlotHistory history;
  for (size_t newest = 0; newest < versions.size(); ++newest) {
    history.push(versions[newest]);
    for (size_t known = 0; known <= newest; ++known)
      EXPECT_EQ(changed_data(versions[known], history.since(static_cast<int64_t>(known) + 1)), versions[newest])
          << "from " << known + 1 << " to " << newest + 1;
  }
}

TEST(PlotHistory, ForgetsOldAndUnknownVersions) {
  PlotHistory history;
  std::vector<ordered_json> versions;
  ordered_json points = ordered_json::array();
  for (int64_t n = 1; n <= PlotHistory::kRemembered + 50; ++n) {
    if (n == 100) points = ordered_json::array();
    points.push_back({n, -n});
    versions.push_back(data_of({chart_of("Loss", points)}, n));
    history.push(versions.back());
  }
  const int64_t oldest = history.version() - PlotHistory::kRemembered;
  for (const int64_t known : {INT64_MIN, int64_t{-1}, int64_t{0}, oldest - 1, history.version() + 1, INT64_MAX})
    EXPECT_FALSE(history.remembers(known)) << known;
  for (int64_t known = oldest; known <= history.version(); ++known) {
    ASSERT_TRUE(history.remembers(known)) << known;
    EXPECT_EQ(changed_data(versions[static_cast<size_t>(known - 1)], history.since(known)), history.data());
  }
}

ordered_json plots_until(int64_t step) {
  Metrics m = synthetic::run(6000, 2, 8, 2, 2);
  const auto cut = [&](auto& events) { std::erase_if(events, [&](const auto& event) { return event.step > step; }); };
  cut(m.steps);
  cut(m.evals);
  cut(m.experts);
  return plot_data(m, make_charts(m), make_heat_map(m.experts));
}

// Also for smoothed, thinned and averaged curves, unless they are thinned further.
TEST(PlotHistory, AStepOfALongRunIsASmallChange) {
  for (const int64_t step : {150, 700, 3100, 5500}) {
    PlotHistory history;
    history.push(plots_until(step));
    const ordered_json before = history.data();
    history.push(plots_until(step + 2));
    const ordered_json changes = history.since(1);
    EXPECT_EQ(changed_data(before, changes), history.data());
    EXPECT_LT(changes.dump().size(), 6000u) << step;
    EXPECT_GT(history.data().dump().size(), 30'000u) << step;
  }
}

}  // namespace
}  // namespace witan
