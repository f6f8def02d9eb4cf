// A trained run is exported in each quantised type and imported again: the ledger has every tensor, errors are printed,
// the loss is close to the run's, and a second export gives the same values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "witan/base/json.h"
#include "witan/formats/gguf.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Type {
  const char *dtype, *format;
  const char *name, *matrix;  // as the export prints them
  double most_error;          // of any kind of matrix, in percent
  double most_loss;           // largest change of the loss
};

void PrintTo(const Type& type, std::ostream* out) {
  *out << type.dtype << " in " << type.format;
}

class WideRuns : public SmallRuns {
 protected:
  // Its widths are multiples of the 256-value super-blocks, and its steps are large enough for the loss to depend on
  // the weights.
  void train_wide(const std::string& name) const {
    const std::string text = folder_ / "text.txt";
    done({"train",
          "--run",
          name,
          "--data",
          text,
          "--device",
          "cpu",
          "--ranks",
          "1",
          "--deterministic",
          "--tokenizer-vocab-size",
          "300",
          "--num-layers",
          "2",
          "--hidden-size",
          "256",
          "--ffn-hidden-size",
          "256",
          "--num-experts",
          "4",
          "--num-attention-heads",
          "4",
          "--seq-length",
          "32",
          "--micro-batch-size",
          "2",
          "--global-batch-size",
          "4",
          "--train-iters",
          "12",
          "--lr",
          "0.003",
          "--sample-tokens",
          "0",
          "--held-out-fraction",
          "0.2"});
  }
  double loss_of(const std::string& name) const {
    return Json::parse(done({"eval", "--run", name, "--data", folder_ / "text.txt", "--json"}).out)["loss"];
  }
  // The errors of matrices that the export recorded.
  Json errors_of(const std::string& name) const {
    return Json::parse(file("runs/" + name + "/export-ledger.json"))["quantised"];
  }
};

class QuantisedExports : public WideRuns, public ::testing::WithParamInterface<Type> {};

TEST_P(QuantisedExports, KeepTheLossAndRoundTripTheValues) {
  const Type& type = GetParam();
  train_wide("one");
  const fs::path out = folder_ / (std::string(type.format) == "gguf" ? "out.gguf" : "out");
  const Said said = done({"export", "--run", "one", "--format", type.format, out, "--dtype", type.dtype});
  EXPECT_THAT(said.out, AllOf(HasSubstr("tensors were written"), HasSubstr("relative RMS error"), HasSubstr(type.name),
                              HasSubstr(type.matrix)));
  const Json errors = errors_of("one");
  ASSERT_GT(errors.size(), 4U);
  for (const Json& kind : errors) {
    EXPECT_GT(kind["relative_rms_error"].get<double>(), 0) << kind;
    EXPECT_LT(kind["relative_rms_error"].get<double>(), type.most_error / 100) << kind;
  }
  done({"import", out, "--run", "two"});
  EXPECT_NEAR(loss_of("two"), loss_of("one"), type.most_loss);
  EXPECT_FALSE(done({"generate", "the ", "--run", "two", "--greedy", "--max-tokens", "4"}).out.empty());
  // An unquantised folder of the imported values is the same model.
  done({"export", "--run", "two", "--format", "hf", folder_ / "plain", "--dtype", "float32"});
  done({"import", folder_ / "plain", "--run", "three"});
  EXPECT_EQ(loss_of("three"), loss_of("two"));
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedExports,
                         ::testing::Values(Type{"q8_0", "gguf", "Q8_0", "moe.experts.down_proj", 0.7, 0.005},
                                           Type{"q6_k", "gguf", "Q6_K", "moe.experts.down_proj", 2.2, 0.01},
                                           Type{"q5_k", "gguf", "Q5_K", "attention.q_proj", 4.3, 0.02},
                                           Type{"q4_k", "gguf", "Q4_K", "attention.v_proj", 8.5, 0.05},
                                           Type{"q4_k_m", "gguf", "Q6_K", "attention.v_proj", 8.5, 0.05},
                                           Type{"mxfp4", "gguf", "MXFP4", "moe.experts.down_proj", 13, 0.1},
                                           Type{"fp8", "hf", "FP8", "attention.q_proj", 3.2, 0.02},
                                           Type{"int8", "hf", "INT8", "attention.q_proj", 1.2, 0.01},
                                           Type{"int4", "hf", "INT4", "moe.experts.gate_up_proj", 13, 0.1}),
                         [](const auto& type) { return std::string(type.param.dtype); });

// Weights differ more from the run's than without calibration, so that outputs differ less.
TEST_F(WideRuns, AreCalibratedOnAText) {
  train_wide("one");
  done({"export", "--run", "one", folder_ / "plain", "--dtype", "int4"});
  const Json plain = errors_of("one");
  const Said said =
      done({"export", "--run", "one", folder_ / "out", "--dtype", "int4", "--calibrate", folder_ / "text.txt"});
  EXPECT_THAT(said.out, HasSubstr("calibrated   with "));
  const Json calibrated = errors_of("one");
  ASSERT_EQ(calibrated.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_GT(calibrated[i]["relative_rms_error"].get<double>(), plain[i]["relative_rms_error"].get<double>());
  const Json ledger = Json::parse(file("runs/one/export-ledger.json"));
  EXPECT_GT(ledger["calibration"]["tokens"].get<int64_t>(), 100);
  EXPECT_TRUE(ledger["calibration"]["uncalibrated"].is_array());
  done({"import", folder_ / "out", "--run", "two"});
  EXPECT_NEAR(loss_of("two"), loss_of("one"), 0.1);
  // Calibration is deterministic.
  done({"export", "--run", "one", folder_ / "again", "--dtype", "int4", "--calibrate", folder_ / "text.txt"});
  EXPECT_EQ(file("again/model.safetensors"), file("out/model.safetensors"));
}

class QuantisedTypes : public SmallRuns {};

TEST_F(QuantisedTypes, RefusesTypesThatAFormatLacks) {
  train_small("one", {"--ranks", "1"});
  EXPECT_THAT(run({"export", "--run", "one", "--dtype", "q4_k", folder_ / "hf"}).err, HasSubstr("add --format gguf"));
  EXPECT_THAT(run({"export", "--run", "one", "--dtype", "int4", "--format", "gguf", folder_ / "a.gguf"}).err,
              HasSubstr("add --format hf"));
  EXPECT_THAT(run({"export", "--run", "one", "--dtype", "mxfp4", folder_ / "hf"}).err, HasSubstr("only gpt_oss's"));
  for (const char* dtype : {"int8", "fp8"})
    EXPECT_THAT(
        run({"export", "--run", "one", "--dtype", dtype, "--calibrate", folder_ / "text.txt", folder_ / "hf"}).err,
        HasSubstr("--calibrate chooses the roundings of int4"));
  EXPECT_THAT(
      run({"export", "--run", "one", "--dtype", "int4", "--calibrate", folder_ / "none.txt", folder_ / "hf"}).err,
      HasSubstr("none.txt"));
  EXPECT_FALSE(fs::exists(folder_ / "hf"));
}

// Rows that do not fill super-blocks use llama.cpp's fallback types.
TEST_F(QuantisedTypes, NarrowRowsFallBack) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "gguf", folder_ / "a.gguf", "--dtype", "q4_k_m"});
  const GgufFile file(folder_ / "a.gguf");
  EXPECT_EQ(file.find("blk.0.attn_q.weight")->info.type->name, "Q5_0");
  EXPECT_EQ(file.find("blk.1.ffn_down_exps.weight")->info.type->name, "Q8_0");
  EXPECT_EQ(file.find("blk.0.ffn_gate_inp.weight")->info.type->name, "F32");
  done({"import", folder_ / "a.gguf", "--run", "two"});
  // A second quantisation would change values of all types but Q8_0.
  done({"export", "--run", "two", "--format", "gguf", folder_ / "b.gguf"});
  const GgufFile again(folder_ / "b.gguf");
  EXPECT_EQ(again.find("blk.0.attn_q.weight")->info.type->name, "F32");
  EXPECT_EQ(again.find("blk.1.ffn_down_exps.weight")->info.type->name, "Q8_0");
}

}  // namespace
}  // namespace witan::test
