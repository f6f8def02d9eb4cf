// Compares each kind of attention with Hugging Face's models, forward and backward.
#include "witan/nn/attention/attention.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "support/module.h"
#include "witan/nn/attention/config.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

constexpr int64_t kWidth = 12;
const std::vector<int32_t> kPositions = {0, 1, 2, 3, 17, 18, 60, 61, 200};

struct GoldenCase {
  std::string name;
  AttentionConfig config;
  std::map<std::string, std::vector<double>> of;  // y, x, and parameters
};

AttentionConfig config_of(const std::string& settings) {
  AttentionConfig config;
  std::istringstream words(settings);
  for (std::string word; std::getline(words, word, ';');) {
    const size_t equals = word.find('=');
    set_field(config.fields(), word.substr(0, equals), word.substr(equals + 1), "golden");
  }
  config.validate(kWidth, 1);
  return config;
}

// tests/golden/nn/make_attention.py describes the lines.
std::vector<GoldenCase> golden_cases() {
  std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/nn/attention.tsv");
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, name, settings;
    words >> what;
    if (what == "case") {
      words >> name >> settings;
      cases.push_back({name, config_of(settings), {}});
      continue;
    }
    for (double value = 0; words >> value;) cases.back().of[what].push_back(value);
  }
  return cases;
}

template <class Wave>
Tensor counted(Rank& rank, const Shape& shape, const Wave& wave) {
  const Tensor out = rank.stream.empty(shape, DType::f64);
  for (int64_t i = 0; i < out.elements(); ++i) out.data<double>()[i] = wave(static_cast<double>(i));
  return out;
}

// The short name of "layer.q_proj.weight" is q_proj.
std::string short_name(const Parameter& parameter) {
  const std::string& name = parameter.name();
  const size_t last = name.rfind('.'), before = name.rfind('.', last - 1);
  return name.substr(before + 1, last - before - 1);
}

TEST(Attention, MatchesHuggingFace) {
  const auto cases = golden_cases();
  EXPECT_EQ(cases.size(), 5);
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    Rank rank;
    const Builder builder{.stream = rank.stream, .dtype = DType::f64, .path = "layer"};
    const MixerSpec spec = golden.config.layers(kWidth, 1).front();
    const auto attention = mixer_kind(spec).make(builder, {.width = kWidth}, {});
    testing::bind_gradients(rank.stream, *attention);
    double p = 0;
    for (Parameter* parameter : attention->parameters()) {
      const bool matrix = parameter->shape().dims() == 2;
      for (int64_t i = 0; i < parameter->elements(); ++i) {
        const double wave = std::sin(1.7 * static_cast<double>(i) + p);
        parameter->value().data<double>()[i] = matrix ? 0.3 * wave : 1 + 0.2 * wave;
      }
      p += 1;
    }
    const int64_t S = static_cast<int64_t>(kPositions.size());
    const Positions where{rank.tensor<int32_t>({1, S}, kPositions), {}};
    Tape tape(rank.stream);
    const Var x = tape.input(counted(rank, {1, S, kWidth}, [](double i) { return std::sin(0.9 * i + 0.2); }));
    const Var y = attention->forward(tape, x, where);
    EXPECT_TRUE(close(values(y.value()), golden.of.at("y"), 1e-12, 1e-12));
    tape.backward({{y, counted(rank, y.shape(), [](double i) { return std::cos(0.4 * i + 0.1); })}});
    EXPECT_TRUE(close(values(tape.gradient(x)), golden.of.at("x"), 1e-11, 1e-11));
    EXPECT_EQ(attention->parameters().size() + 2, golden.of.size());
    for (Parameter* parameter : attention->parameters())
      EXPECT_TRUE(close(values(parameter->gradient()), golden.of.at(short_name(*parameter)), 1e-11, 1e-11))
          << parameter->name();
  }
}

}  // namespace
}  // namespace witan
