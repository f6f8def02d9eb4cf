#include "witan/report/events/events.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/synthetic.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(Events, GoldenLines) {
  EXPECT_EQ(
      format_event(RunEvent{"r", "2025-01-02T03:04:05Z", "ab", 2, 100, 60, 4096, 500, 96.5}),
      R"({"kind":"run","name":"r","started":"2025-01-02T03:04:05Z","config_hash":"ab","world_size":2,"parameters":100,)"
      R"("active_parameters":60,"tokens_per_step":4096,"total_steps":500,"ceiling_gflops":96.5})");
  EXPECT_EQ(
      format_event(RunEvent{"r", "", "", 2, 0, 0, 0, 0, 0, "shard=2"}),
      R"({"kind":"run","name":"r","started":"","config_hash":"","world_size":2,"parameters":0,"active_parameters":0,)"
      R"("tokens_per_step":0,"total_steps":0,"ceiling_gflops":0.0,"layout":"shard=2"})");
  EXPECT_EQ(format_event(MemoryEvent{1, {{"weights", 8}, {"activations", 4}}, 12}),
            R"({"kind":"memory","rank":1,"tags":{"activations":4,"weights":8},"peak":12})");
  EXPECT_EQ(format_event(ExpertsEvent{5, {}, {{0.25, 0.75}, {0.5, 0.5}}}),
            R"({"kind":"experts","step":5,"load":[[0.25,0.75],[0.5,0.5]]})");
  EXPECT_EQ(format_event(LayersEvent{5, {0.5, 0.25}, 0.75, 1}),
            R"({"kind":"layers","step":5,"grad_norms":[0.5,0.25],"embedding_grad_norm":0.75,"head_grad_norm":1.0})");
  EXPECT_EQ(format_event(ActivationsEvent{5, {{"mlp_rms", {0.5, NAN}}, {"residual_max", {2, 3}}}}),
            R"({"kind":"activations","step":5,"statistics":{"mlp_rms":[0.5,null],"residual_max":[2.0,3.0]}})");
  EXPECT_EQ(format_event(GpusEvent{5, {60, 61}, {412.5, NAN}, {8, 16}, {0, 4}}),
            R"({"kind":"gpus","step":5,"temperature":[60.0,61.0],"power":[412.5,null],"memory_used":[8.0,16.0],)"
            R"("throttle_reasons":[0,4]})");
  EXPECT_EQ(format_event(EvalEvent{10, 3.5, 2.25}), R"({"kind":"eval","step":10,"loss":3.5,"bits_per_byte":2.25})");
  EXPECT_EQ(format_event(EvalEvent{10, 3.5, 2.25, {}, {}, {}, {}, 0.75}),
            R"({"kind":"eval","step":10,"loss":3.5,"bits_per_byte":2.25,"reward":0.75})");
  EXPECT_EQ(format_event(EvalEvent{10, 3.5, 2.25, "code", 1.5}),
            R"({"kind":"eval","step":10,"loss":3.5,"bits_per_byte":2.25,"set":"code","seconds":1.5})");
  const std::string routed = format_event(EvalEvent{10, 3.5, 2.25, {}, {}, {{"z_loss", 0.5}, {"router_entropy", 1.5}}});
  EXPECT_EQ(routed, R"({"kind":"eval","step":10,"loss":3.5,"bits_per_byte":2.25,)"
                    R"("router":{"router_entropy":1.5,"z_loss":0.5}})");
  EXPECT_EQ(format_event(*parse_event(routed, "here")), routed);
  EXPECT_EQ(format_event(BaselineEvent{"Kneser-Ney bigram", 2.5}),
            R"({"kind":"baseline","name":"Kneser-Ney bigram","bits_per_byte":2.5})");
  EXPECT_EQ(format_event(AnomalyEvent{.step = 4, .what = "nan", .action = "rewind", .at = 7, .text = "t"}),
            R"({"kind":"anomaly","step":4,"what":"nan","action":"rewind","at":7,"text":"t"})");
  EXPECT_EQ(format_event(ResumeEvent{8, "2025-01-02T03:04:05Z"}),
            R"({"kind":"resume","step":8,"time":"2025-01-02T03:04:05Z"})");
  EXPECT_EQ(format_event(SampleEvent{10, "a\n", "b"}), R"({"kind":"sample","step":10,"prompt":"a\n","text":"b"})");
  const std::string seeded = format_event(SampleEvent{10, "a", "b", 1244});
  EXPECT_EQ(seeded, R"({"kind":"sample","step":10,"prompt":"a","text":"b","seed":1244})");
  EXPECT_EQ(std::get<SampleEvent>(*parse_event(seeded, "here")).seed, 1244);
  EXPECT_EQ(format_event(SaveEvent{10, 0.5, 0.25}), R"({"kind":"save","step":10,"seconds":0.5,"paused_s":0.25})");
  EXPECT_EQ(format_event(EndEvent{"finished"}), R"({"kind":"end","reason":"finished"})");
  EXPECT_EQ(format_event(EndEvent{"finished", 8, 9}),
            R"({"kind":"end","reason":"finished","peak_resident":8.0,"promised_resident":9.0})");
  EXPECT_EQ(format_event(MeasuredMemoryEvent{{1, {{"weights", 8}}, 12}}),
            R"({"kind":"measured_memory","rank":1,"tags":{"weights":8},"peak":12})");
}

TEST(Events, RoundTripEveryKind) {
  Metrics m = synthetic::run(10, 2, 4);
  m.run->layout = "shard=2";
  const std::vector<Event> events = {*m.run,
                                     m.memory[1],
                                     m.steps[2],
                                     m.steps[9],
                                     m.experts[0],
                                     m.evals[0],
                                     m.baselines[0],
                                     m.samples[0],
                                     SaveEvent{10, 0.5, 0.25},
                                     ResumeEvent{10, "2025-01-02T03:04:05Z"},
                                     LayersEvent{10, {0.5, 0.25}, 0.75, 1},
                                     ActivationsEvent{10, {{"mlp_rms", {0.5, 0.25}}}},
                                     GpusEvent{10, {60}, {412.5}, {8}, {4}},
                                     *m.end,
                                     MeasuredMemoryEvent{{1, {{"weights", 8}}, 12}},
                                     synthetic::step(1, 10, false),
                                     ExpertsEvent{3, {1, 3}, {{1}, {0.5, 0.5}}}};
  for (const Event& event : events) {
    const std::string line = format_event(event);
    const std::optional<Event> back = parse_event(line, "here");
    ASSERT_TRUE(back);
    EXPECT_EQ(back->index(), event.index());
    EXPECT_EQ(kind_of(line), event.index());
    EXPECT_EQ(format_event(*back), line);
  }
}

TEST(Events, RecognizeKindsByTheStartOfALine) {
  EXPECT_EQ(kind_of(format_event(synthetic::step(7, 10, true))), kIndexOf<StepEvent>);
  EXPECT_EQ(kind_of(format_event(EndEvent{"finished"})), kIndexOf<EndEvent>);
  EXPECT_EQ(quick_step(format_event(synthetic::step(7, 10, true))), 7);
  for (const char* other : {"", "{", R"({"kind":"step"})", R"({"kind":"ste","step":7})", R"({"kind": "step","step":7})",
                            R"({"kind":"steps","step":7})", R"({"kind":"step)"})
    EXPECT_EQ(kind_of(other), std::nullopt) << other;
  for (const char* other : {"", R"({"kind":"end","reason":"finished"})", R"({"kind":"step","step":7)",
                            R"({"kind":"step","step":-7,"loss":1})", R"({"kind":"step","step":7.5,"loss":1})"})
    EXPECT_EQ(quick_step(other), std::nullopt) << other;
}

TEST(Events, DenseStepHasNoExpertKeys) {
  const std::string line = format_event(synthetic::step(1, 10, false));
  EXPECT_EQ(line.find("load_balancing_loss"), std::string::npos);
  EXPECT_FALSE(std::get<StepEvent>(*parse_event(line, "here")).load_max_over_mean);
  EXPECT_EQ(line.find("dropped_share"), std::string::npos);
}

TEST(Events, HaveTheShareOfDroppedAssignments) {
  StepEvent step = synthetic::step(1, 10, true);
  step.dropped_share = 0.125;
  const std::string line = format_event(step);
  EXPECT_NE(line.find("\"dropped_share\":0.125"), std::string::npos);
  EXPECT_EQ(std::get<StepEvent>(*parse_event(line, "here")).dropped_share, 0.125);
}

TEST(Events, HaveLossesOfMultiTokenPrediction) {
  StepEvent step = synthetic::step(1, 10, false);
  EXPECT_EQ(format_event(step).find("mtp_losses"), std::string::npos);
  step.mtp_losses = {2.5, 3};
  const std::string line = format_event(step);
  EXPECT_NE(line.find("\"mtp_losses\":[2.5,3.0]"), std::string::npos) << line;
  EXPECT_EQ(std::get<StepEvent>(*parse_event(line, "here")).mtp_losses, step.mtp_losses);
}

TEST(Events, WriteStatisticsOfRoutersByName) {
  StepEvent step = synthetic::step(1, 10, true);
  set_router_statistic(step, "z_loss", 0.5);
  set_router_statistic(step, "router_entropy", 1.25);
  const std::string line = format_event(step);
  EXPECT_NE(line.find("\"z_loss\":0.5"), std::string::npos) << "keeps its own key";
  EXPECT_NE(line.find("\"router\":{\"router_entropy\":1.25}"), std::string::npos) << line;
  const StepEvent back = std::get<StepEvent>(*parse_event(line, "here"));
  EXPECT_EQ(router_statistic(back, "z_loss"), 0.5);
  EXPECT_EQ(router_statistic(back, "router_entropy"), 1.25);
  EXPECT_EQ(router_statistic(back, "another"), std::nullopt);

  const ExpertsEvent experts{3, {1, 3}, {{1, 0}, {0.5, 0.5}}, {{"bias", {{1, 2}, {3, 4}}}, {"entropy", {{7}, {8}}}}};
  const std::string layers = format_event(experts);
  EXPECT_NE(layers.find("\"statistics\":{\"bias\":[[1.0,2.0],[3.0,4.0]],\"entropy\":[7.0,8.0]}"), std::string::npos)
      << layers;
  EXPECT_EQ(std::get<ExpertsEvent>(*parse_event(layers, "here")).statistics, experts.statistics);
  EXPECT_THROW(parse_event(R"({"kind":"experts","step":3,"load":[[1]],"statistics":{"entropy":[7,8]}})", "here"),
               CorruptionError);
}

TEST(Events, WriteNonFiniteNumbersAsNullAndReadThemAsNaN) {
  StepEvent step = synthetic::step(1, 10, false);
  step.loss = INFINITY;
  const std::string line = format_event(step);
  EXPECT_NE(line.find("\"loss\":null"), std::string::npos);
  EXPECT_TRUE(std::isnan(std::get<StepEvent>(*parse_event(line, "here")).loss));
}

TEST(Events, ReplaceInvalidUtf8InSamples) {
  const std::string line = format_event(SampleEvent{1, "\xff", "ok"});
  EXPECT_EQ(std::get<SampleEvent>(*parse_event(line, "here")).prompt, "\xEF\xBF\xBD");
}

TEST(Events, SkipUnknownKindsAndKeys) {
  EXPECT_FALSE(parse_event(R"({"kind":"gpu","temperature":60})", "here"));
  EXPECT_TRUE(parse_event(R"({"kind":"end","reason":"finished","signal":2})", "here"));
}

void expect_corrupt(std::string_view line, const std::string& message) {
  try {
    parse_event(line, "m.jsonl: line 7");
    ADD_FAILURE() << line << " was accepted";
  } catch (const CorruptionError& e) {
    EXPECT_EQ(std::string(e.what()).rfind("m.jsonl: line 7", 0), 0u) << e.what();
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
  }
}

TEST(Events, ErrorsNameLineAndKey) {
  expect_corrupt("[1]", "must be a JSON object");
  expect_corrupt("{", "not valid JSON");
  expect_corrupt("{}", "\"kind\" is missing");
  expect_corrupt(R"({"kind":3})", "\"kind\" must be a string");
  expect_corrupt(R"({"kind":"end"})", "\"reason\" is missing");
  expect_corrupt(R"({"kind":"eval","step":-1,"loss":1,"bits_per_byte":1})", "\"step\" must be a whole number");
  expect_corrupt(R"({"kind":"eval","step":18446744073709551615,"loss":1,"bits_per_byte":1})", "\"step\" must be");
  expect_corrupt(R"({"kind":"eval","step":1.5,"loss":1,"bits_per_byte":1})", "\"step\" must be a whole number");
  expect_corrupt(R"({"kind":"eval","step":1,"loss":"x","bits_per_byte":1})", "\"loss\" must be a number");
  expect_corrupt(R"({"kind":"experts","step":1,"load":[1]})", "\"load\" must be a list");
  expect_corrupt(R"({"kind":"experts","step":1,"load":[["a"]]})", "\"load\" must be a number");
  expect_corrupt(R"({"kind":"experts","step":1,"layers":[0,1],"load":[[1]]})", "names 2 layers");
  expect_corrupt(R"({"kind":"memory","rank":0,"tags":[],"peak":1})", "\"tags\" must be an object");
  expect_corrupt(R"({"kind":"experts","step":1,"load":[[[[1]]]]})", "nested deeper");
}

TEST(Events, RejectEveryTruncation) {
  const std::string line = format_event(synthetic::step(5, 10, true));
  for (size_t n = 0; n < line.size(); ++n)
    EXPECT_THROW(parse_event(std::string_view(line).substr(0, n), "here"), CorruptionError) << n;
}

}  // namespace
}  // namespace witan
