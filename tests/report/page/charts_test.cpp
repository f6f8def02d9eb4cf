#include "witan/report/page/charts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/synthetic.h"

namespace witan {
namespace {

const Chart* find(const std::vector<Chart>& charts, const std::string& title) {
  const auto found = std::find_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.title == title; });
  return found == charts.end() ? nullptr : &*found;
}

TEST(Charts, AFullRunHasAllCharts) {
  const std::vector<Chart> charts = make_charts(synthetic::run(500, 2, 8));
  for (const char* title :
       {"Loss", "Validation", "Gradient norm", "Learning rate", "Busiest expert", "Router losses", "Throughput",
        "Arithmetic", "Share of the machine's ceiling", "Time per step", "Parts of a step"})
    EXPECT_TRUE(find(charts, title)) << title;
  std::vector<std::string> parts;
  for (const Series& one : find(charts, "Parts of a step")->series) parts.push_back(one.name);
  EXPECT_EQ(parts, (std::vector<std::string>{"forward", "backward", "reduction of gradients", "optimizer"}));
  const Chart& loss = *find(charts, "Loss");
  ASSERT_EQ(loss.series.size(), 3u);
  EXPECT_EQ(loss.series[1].name, "smoothed");
  EXPECT_EQ(find(charts, "Validation")->series[1].name, "Kneser-Ney bigram");
}

TEST(Charts, ShowOneSeriesPerLayerOrForSomeLayers) {
  for (const size_t layers : {3, 8, 9, 61}) {
    Metrics m = synthetic::run(20, 0, 0);
    EXPECT_FALSE(find(make_charts(m), "Gradient norm by layer"));
    for (const StepEvent& step : m.steps) {
      LayersEvent& event = m.layers.emplace_back(LayersEvent{step.step, {}, 7, NAN});
      for (size_t layer = 0; layer < layers; ++layer) event.grad_norms.push_back(static_cast<double>(layer % 60));
    }
    const std::vector<Chart> charts = make_charts(m);
    const Chart& chart = *find(charts, "Gradient norm by layer");
    ASSERT_EQ(chart.series.size(), std::min<size_t>(layers, 8));
    EXPECT_EQ(chart.series[0].name, "layer 0");
    const Series& last = chart.series[layers <= 8 ? layers - 1 : 6];
    EXPECT_EQ(last.name, "layer " + std::to_string(layers - 1));
    EXPECT_EQ(last.points.back().y, static_cast<double>((layers - 1) % 60));
    if (layers == 61) {
      EXPECT_EQ(chart.series[3].name, "layer 30");
      EXPECT_EQ(chart.series[7].name, "largest of 61 layers");
      EXPECT_EQ(chart.series[7].points.back().y, 59);
    }
    EXPECT_EQ(find(charts, "Gradient norm beside the layers")->series.size(), 1u) << "one point is not finite";
    EXPECT_FALSE(find(merge_charts({charts, charts}, {"a", "b"}), "Gradient norm by layer"));
  }
}

TEST(Charts, IncludeEveryStatisticOfActivations) {
  Metrics m = synthetic::run(20, 0, 0);
  EXPECT_FALSE(find(make_charts(m), "MLP output, RMS"));
  for (const StepEvent& step : m.steps)
    m.activations.push_back({step.step, {{"mlp_rms", {0.5, NAN, 2}}, {"a_new_one", {1, 2, 3}}}});
  m.activations.front().statistics.erase("a_new_one");
  const std::vector<Chart> charts = make_charts(m);
  const Chart& rms = *find(charts, "MLP output, RMS");
  EXPECT_EQ(rms.section, Chart::Section::activations);
  ASSERT_EQ(rms.series.size(), 2u) << "one layer has none";
  EXPECT_EQ(rms.series[1].name, "layer 2");
  EXPECT_EQ(rms.series[1].points.back().y, 2);
  EXPECT_EQ(find(charts, "A new one")->series[0].points.size(), 19u);
  EXPECT_FALSE(find(merge_charts({charts, charts}, {"a", "b"}), "A new one"));

  for (ActivationsEvent& event : m.activations) event.statistics["mlp_zeros"] = {0, 0, 0};
  EXPECT_FALSE(find(make_charts(m), "MLP output, zeros")) << "no zeros recorded";
  m.activations.back().statistics["mlp_zeros"][1] = 0.25;
  EXPECT_TRUE(find(make_charts(m), "MLP output, zeros"));
}

TEST(Charts, ShowOneSeriesPerGpuAndSlowdownReason) {
  Metrics m = synthetic::run(3, 0, 0);
  EXPECT_FALSE(find(make_charts(m), "GPU temperature"));
  m.gpus = {{1, {60, 61}, {400, NAN}, {8, 16}, {0x1, 0x2}}, {3, {62, 63}, {410, NAN}, {8, 16}, {0x4, 0x44}}};
  const std::vector<Chart> charts = make_charts(m);
  const Chart& temperature = *find(charts, "GPU temperature");
  ASSERT_EQ(temperature.series.size(), 2u);
  EXPECT_EQ(temperature.series[1].name, "GPU 1");
  EXPECT_EQ(temperature.series[1].points.back().y, 63);
  EXPECT_EQ(find(charts, "GPU power")->series.size(), 1u) << "the other GPU does not report it";
  EXPECT_EQ(find(charts, "GPU memory")->series[1].points.back().y, 16);
  const Chart& clocks = *find(charts, "Lowered clocks");
  ASSERT_EQ(clocks.series.size(), 2u);
  EXPECT_EQ(clocks.series[0].name, "power cap");
  EXPECT_EQ(clocks.series[0].points.front().y, 0) << "idle clocks and fixed clocks are not slowdowns";
  EXPECT_EQ(clocks.series[0].points.back().y, 2);
  EXPECT_EQ(clocks.series[1].name, "temperature");
  EXPECT_EQ(clocks.series[1].points.back().y, 1);
  EXPECT_FALSE(find(merge_charts({charts, charts}, {"a", "b"}), "GPU temperature"));
}

TEST(Charts, AreOmittedWithoutData) {
  Metrics dense = synthetic::run(3, 0, 0);
  dense.evals.clear();
  dense.run->ceiling_gflops = 0;
  const std::vector<Chart> charts = make_charts(dense);
  for (const char* title : {"Validation", "Busiest expert", "Router losses", "Share of the machine's ceiling"})
    EXPECT_FALSE(find(charts, title)) << title;
  EXPECT_EQ(find(charts, "Loss")->series.size(), 1u) << "three points are not smoothed";
  EXPECT_TRUE(make_charts({}).empty());
}

TEST(Charts, ShowRewardsOfHeldOutPrompts) {
  Metrics m = synthetic::run(20, 2, 4);
  EXPECT_FALSE(find(make_charts(m), "Eval reward"));
  m.evals.back().reward = 0.75;
  const std::vector<Chart> charts = make_charts(m);
  const Chart* const chart = find(charts, "Eval reward");
  ASSERT_TRUE(chart);
  EXPECT_EQ(chart->series.front().points.back().y, 0.75);
}

TEST(Charts, OmitNonFiniteValues) {
  Metrics m = synthetic::run(4, 0, 0);
  m.steps[1].loss = NAN;
  const Curve points = find(make_charts(m), "Loss")->series[0].points;
  EXPECT_EQ(points.size(), 3u);
}

TEST(Charts, ThinLongRuns) {
  for (const Chart& chart : make_charts(synthetic::run(20'000, 1, 4)))
    for (const Series& s : chart.series) EXPECT_LE(s.points.size(), kMostPoints) << chart.title;
}

TEST(HeatMap, UsesThousandthsOfTheEvenShare) {
  const auto heat = make_heat_map({{10, {}, {{0.5, 0.25, 0.25, 0}}}, {20, {}, {{0.25, 0.25, 0.25, 0.25}}}});
  ASSERT_TRUE(heat);
  EXPECT_EQ(heat->steps, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(heat->panels[0].load, (std::vector<std::vector<int>>{{2000, 1000, 1000, 0}, {1000, 1000, 1000, 1000}}));
}

TEST(Charts, IncludeEveryStatisticOfRouters) {
  Metrics m = synthetic::run(20, 2, 4);
  for (StepEvent& step : m.steps) {
    set_router_statistic(step, "router_entropy", 1.25);
    set_router_statistic(step, "share_of_the_best", 0.5);
  }
  for (ExpertsEvent& event : m.experts)
    event.statistics = {{"router_entropy", {{1}, {1.5}}}, {"load_max_over_mean", {{3}, {2}}}};
  std::map<std::string, Chart> charts;
  for (const Chart& chart : make_charts(m)) charts[chart.title] = chart;
  ASSERT_TRUE(charts.contains("Router entropy"));
  const Chart& entropy = charts["Router entropy"];
  EXPECT_EQ(entropy.section, Chart::Section::experts);
  EXPECT_EQ(entropy.unit, "nats, mean over tokens");
  const auto last = [](const Chart& chart, const std::string& series) {
    for (const Series& one : chart.series)
      if (one.name == series) return one.points.back().y;
    return -1.0;
  };
  EXPECT_EQ(last(entropy, "all layers"), 1.25);
  EXPECT_EQ(last(entropy, "lowest layer"), 1);
  EXPECT_EQ(last(entropy, "highest layer"), 1.5);
  EXPECT_EQ(last(charts["Share of the best"], "all layers"), 0.5);
  EXPECT_EQ(last(charts["Busiest expert"], "most even layer"), 2);
}

TEST(Charts, ShowTheCurveOfASingleLayerOnce) {
  Metrics m = synthetic::run(20, 1, 4);
  for (StepEvent& step : m.steps)
    for (const char* name : {"router_entropy", "expert_bias"}) set_router_statistic(step, name, 1.25);
  for (ExpertsEvent& event : m.experts)
    event.statistics = {{"router_entropy", {{1.25}}}, {"expert_bias", {{-1, 0, 0, 1}}}, {"load_max_over_mean", {{3}}}};
  const std::vector<Chart> charts = make_charts(m);
  const auto names = [&](const char* title) {
    std::vector<std::string> out;
    for (const Series& one : find(charts, title)->series)
      if (one.style != Series::Style::faint) out.push_back(one.name);
    return out;
  };
  EXPECT_EQ(names("Router entropy"), std::vector<std::string>{"smoothed"});
  EXPECT_EQ(names("Busiest expert"), std::vector<std::string>{"smoothed"});
  EXPECT_EQ(names("Expert bias"), (std::vector<std::string>{"smoothed", "lowest layer", "highest layer"}))
      << "its experts have a value each";
}

TEST(Charts, IncludeLogitsAndLossScalesIfRecorded) {
  Metrics m = synthetic::run(20, 2, 4);
  const auto has = [&](const std::string& title) {
    return std::ranges::any_of(make_charts(m), [&](const Chart& chart) { return chart.title == title; });
  };
  EXPECT_FALSE(has("Largest attention logit"));
  EXPECT_FALSE(has("Loss scale"));
  for (StepEvent& step : m.steps) step.scalars.set(kMaxAttentionLogit, 7), step.scalars.set(kLossScale, 65536);
  EXPECT_TRUE(has("Largest attention logit"));
  ASSERT_TRUE(has("Loss scale"));
  const std::vector<Chart> charts = make_charts(m);
  EXPECT_EQ(std::ranges::find(charts, "Loss scale", &Chart::title)->series[0].points.back().y, 16) << "powers of two";
}

TEST(Charts, ShowModulesOfMultiTokenPredictionTogether) {
  Metrics m = synthetic::run(20, 2, 4);
  const auto find = [&](const std::vector<Chart>& charts) {
    return std::ranges::find(charts, "Multi-token prediction", &Chart::title);
  };
  const std::vector<Chart> without = make_charts(m);
  EXPECT_EQ(find(without), without.end());
  for (StepEvent& step : m.steps) step.mtp_losses = {3, 4};
  const std::vector<Chart> with = make_charts(m);
  ASSERT_NE(find(with), with.end());
  ASSERT_EQ(find(with)->series.size(), 2u);
  EXPECT_EQ(find(with)->series[1].points.front().y, 4);
}

TEST(HeatMap, KeepsNumbersAndSizesOfLayers) {
  const auto heat = make_heat_map({{1, {1, 3}, {{1}, {0.5, 0.5}}}});
  EXPECT_EQ(heat->panels[0].layer, 1);
  EXPECT_EQ(heat->panels[1].layer, 3);
  EXPECT_EQ(heat->panels[1].experts, 2);
}

TEST(HeatMap, IsOmittedForDenseModels) {
  EXPECT_FALSE(make_heat_map({}));
  EXPECT_FALSE(make_heat_map({{1, {}, {}}}));
}

TEST(HeatMap, OmitsOtherShapesAndBadNumbers) {
  const auto heat = make_heat_map({{1, {}, {{1}}}, {2, {}, {{NAN, 7}}}, {3, {}, {{0.5, 0.5}}}});
  EXPECT_EQ(heat->steps, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(heat->panels[0].load[0], (std::vector<int>{0, 0}));
}

TEST(HeatMap, AveragesNeighbours) {
  std::vector<ExpertsEvent> events;
  for (int64_t n = 1; n <= 4000; ++n) events.push_back({n, {}, {{n % 2 ? 1.0 : 0.0, n % 2 ? 0.0 : 1.0}}});
  const auto heat = make_heat_map(events);
  EXPECT_EQ(heat->steps.size(), 250u) << "16 events each: columns of 8 would be more than 400";
  EXPECT_EQ(heat->steps.back(), 4000);
  for (const auto& column : heat->panels[0].load) EXPECT_EQ(column, (std::vector<int>{1000, 1000}));
}

TEST(PlotData, HasRangeAndSeries) {
  const Metrics m = synthetic::run(5, 1, 2);
  const auto json = plot_data(m, make_charts(m), make_heat_map(m.experts));
  EXPECT_EQ(json["steps"], (nlohmann::ordered_json{1, 5}));
  EXPECT_EQ(json["charts"][0]["series"][0]["name"], "training");
  EXPECT_EQ(json["charts"][0]["series"][0]["points"].size(), 5u);
  EXPECT_EQ(json["heat"]["panels"][0]["experts"], 2);
}

TEST(PlotData, MarksResumesAndRollbacks) {
  Metrics m = synthetic::run(5, 0, 0);
  EXPECT_FALSE(plot_data(m, make_charts(m), {})["runs"][0].contains("marks"));
  m.resumes = {{2, "2025-01-02T03:04:05Z"}, {4, "2025-01-02T04:04:05Z"}};
  m.anomalies = {{.step = 3, .what = "nan", .action = "rewind", .at = 5, .text = "t"},
                 {.step = 4, .what = "spike", .action = "skip", .text = "t"}};
  EXPECT_EQ(plot_data(m, make_charts(m), {})["runs"][0]["marks"],
            (nlohmann::ordered_json{{{"step", 2}, {"text", "resumed from step 2, 2025-01-02 03:04:05 UTC"}},
                                    {{"step", 3}, {"text", "back from step 5 to step 3: nan"}},
                                    {{"step", 4}, {"text", "resumed from step 4, 2025-01-02 04:04:05 UTC"}}}));
}

// Data that the page needs to draw over tokens and over time.
TEST(PlotData, HasTokensAndTimesOfRuns) {
  Metrics m = synthetic::run(1000, 0, 0);
  m.steps[500].elapsed_s = 0;  // a clock that was set back
  const auto data = plot_data(m, make_charts(m), std::nullopt);
  ASSERT_EQ(data["runs"].size(), 1u);
  const auto& run = data["runs"][0];
  EXPECT_EQ(run["steps"], nlohmann::json({1, 1000}));
  EXPECT_EQ(run["tokens_per_step"], 4096);
  EXPECT_LE(run["clock"].size(), 400u);
  EXPECT_EQ(run["clock"].front(), nlohmann::json({1, 0.42}));
  EXPECT_EQ(run["clock"].back(), nlohmann::json({1000, 420}));
  for (size_t i = 1; i < run["clock"].size(); ++i) EXPECT_GE(run["clock"][i][1], run["clock"][i - 1][1]) << i;
}

TEST(PlotData, KeepsRawPointsOfSmoothedSeries) {
  const Metrics a = synthetic::run(300, 0, 0), b = synthetic::run(10, 0, 0);
  const auto charts = merge_charts({make_charts(a), make_charts(b)}, {"a", "b"});
  const auto data = plot_data(charts, {make_run_axis(a), make_run_axis(b)});
  const auto& series = data["charts"][0]["series"];
  EXPECT_EQ(data["charts"][0]["title"], "Loss");
  EXPECT_EQ(series[0]["raw"].size(), 300u);
  EXPECT_NE(series[0]["raw"], series[0]["points"]);
  EXPECT_FALSE(series[0].contains("run")) << "the first";
  EXPECT_EQ(series[2]["name"], "b");
  EXPECT_EQ(series[2]["run"], 1);
  EXPECT_FALSE(series[2].contains("raw")) << "too short to smooth";
  EXPECT_FALSE(series[1].contains("raw")) << "evaluations are not smoothed";
}

// Several curves of one run share its colour and differ by dashes.
TEST(PlotData, DashesFurtherCurvesOfARunAndSmoothsThemAlike) {
  Metrics m = synthetic::run(300, 2, 4, 2, 1);
  for (StepEvent& step : m.steps)
    set_router_statistic(step, "router_entropy", 1 + 0.1 * static_cast<double>(step.step % 2));
  for (ExpertsEvent& event : m.experts) {
    const double odd = static_cast<double>(event.step % 2);
    event.statistics = {{"router_entropy", {{1 - odd}, {2 + odd}}}, {"load_max_over_mean", {{3}, {2 - odd}}}};
  }
  const auto charts = merge_charts({make_charts(m), make_charts(m)}, {"a", "b"});
  const auto data = plot_data(charts, {make_run_axis(m), make_run_axis(m)});
  const auto series_of = [&](const char* title) {
    for (const auto& chart : data["charts"])
      if (chart["title"] == title) return chart["series"];
    return nlohmann::ordered_json();
  };
  const auto entropy = series_of("Router entropy");
  ASSERT_EQ(entropy.size(), 6u);
  for (size_t i = 0; i < entropy.size(); ++i) {
    EXPECT_EQ(entropy[i].value("dash", 0), static_cast<int>(i % 3)) << i;
    ASSERT_TRUE(entropy[i].contains("raw")) << entropy[i]["name"];
    EXPECT_EQ(entropy[i]["raw"].size(), 300u);
    EXPECT_NE(entropy[i]["raw"], entropy[i]["points"]) << entropy[i]["name"];
  }
  EXPECT_EQ(entropy[2]["name"], "a highest layer");
  EXPECT_FALSE(entropy[3].contains("dash")) << "the first of each run is solid";
  const auto busiest = series_of("Busiest expert");
  ASSERT_EQ(busiest.size(), 4u);
  EXPECT_EQ(busiest[1]["name"], "a most even layer");
  EXPECT_EQ(busiest[1]["dash"], 1);
  EXPECT_TRUE(busiest[1].contains("raw"));
  const auto of_one = plot_data(make_charts(m), {make_run_axis(m)});
  for (const auto& chart : of_one["charts"])
    for (const auto& one : chart["series"])
      EXPECT_FALSE(one.contains("dash")) << "colours distinguish curves of one run";
}

TEST(PlotData, CentresASingleStep) {
  const Metrics m = synthetic::run(1, 0, 0);
  const auto json = plot_data(m, make_charts(m), std::nullopt);
  EXPECT_EQ(json["steps"], (nlohmann::ordered_json{0, 2}));
  EXPECT_FALSE(json.contains("heat"));
}

}  // namespace
}  // namespace witan
