#include "witan/planner/speeds/ceilings_file.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

using test::TempFolder;

const Load kLoad = {"float32", 2, 1};

Ceilings round_ceilings() {
  Ceilings c;
  c.load = kLoad;
  c.fma_flops = 200e9;
  c.copy_bytes = 10e9;
  c.kernels["gemm"] = {50e9, 1e9, 1.0};
  c.kernels["norm"] = {1e9, 5e9, 1.0};
  c.exchange = {{"all_reduce", 2e9}, {"all_to_all_equal", 4e9}};
  c.between = 0.25;
  return c;
}

TEST(CeilingsFile, KeepsMeasurements) {
  const TempFolder folder;
  const fs::path path = folder / "cache/witan/ceilings.json";
  const CeilingsFile file(path, "this machine");
  EXPECT_FALSE(file.find({"float32", 2, 1}));
  file.keep(round_ceilings());
  Ceilings other = round_ceilings();
  other.load.threads = 4;
  other.between = 0.5;
  file.keep(other);
  const auto found = file.find({"float32", 2, 1});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kernels.at("gemm").flops, 50e9);
  EXPECT_EQ(found->kernels.at("norm").seconds, 1.0);
  EXPECT_EQ(found->exchange, round_ceilings().exchange);
  EXPECT_EQ(found->fma_flops, 200e9);
  EXPECT_EQ(found->copy_bytes, 10e9);
  EXPECT_EQ(file.find({"float32", 2, 4})->between, 0.5);
  EXPECT_FALSE(file.find({"bfloat16", 2, 1}));
  EXPECT_EQ(file.get({"float32", 2, 4}).between, 0.5) << "kept, not measured again";
}

Ceilings ceilings_of_a_gpu() {
  Ceilings c = round_ceilings();
  c.load = {"bfloat16", 2, 1, "NVIDIA H200"};
  GpuSpeeds& speeds = c.speeds.emplace();
  speeds.kernels = {{"", {3e-6, 0, 4e12}}, {"gemm", {2.5e-6, 700e12, 4e12}}};
  speeds.exchanges = {{"all_reduce", {2e-5, 1e-6, 300e9}}};
  speeds.products = {{{128, 8192}, {512, 4096}, {512}}, {100e12, 200e12, 300e12, 750.125e12}};
  speeds.grouped = {{{256, 4096}}, {340e12, 600e12}};
  speeds.attention_forward = {{{512}}, {300e12}};
  speeds.multiprocessors = 132;
  speeds.beside = 0.5;
  return c;
}

TEST(CeilingsFile, KeepsCallCosts) {
  const TempFolder folder;
  const fs::path path = folder / "ceilings.json";
  const CeilingsFile file(path, "this machine");
  Ceilings c = round_ceilings();
  c.calls.kernels = {{"gemm", {1e-6, 0.5e-11, 0.125e-9}}, {"norm", {2e-6, 0, 1e-10}}};
  c.calls.exchange_call = 1e-5;
  c.calls.between_call = 2e-6;
  file.keep(c);
  ASSERT_TRUE(file.find(kLoad));
  EXPECT_EQ(file.find(kLoad)->calls, c.calls);
  c.calls.kernels["gemm"].flop = -1;
  file.keep(c);
  EXPECT_FALSE(file.find(kLoad)) << "impossible values are measured again";
}

TEST(CeilingsFile, KeepsSpeedsOfGpus) {
  const TempFolder folder;
  const CeilingsFile file(folder / "ceilings.json", "this machine");
  file.keep(round_ceilings());
  file.keep(ceilings_of_a_gpu());
  const auto found = file.find(ceilings_of_a_gpu().load);
  ASSERT_TRUE(found && found->speeds);
  EXPECT_EQ(*found->speeds, *ceilings_of_a_gpu().speeds);
  EXPECT_FALSE(file.find(kLoad)->speeds) << "as in files of older versions";
}

// Whatever the file contains, an invalid measurement is repeated.
TEST(CeilingsFile, IgnoresDamagedSpeeds) {
  const TempFolder folder;
  const fs::path path = folder / "ceilings.json";
  const CeilingsFile file(path, "this machine");
  file.keep(ceilings_of_a_gpu());
  const std::string whole = read_file(path, 1 << 20);
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file_atomically(path, whole.substr(0, length));
    EXPECT_FALSE(file.find(ceilings_of_a_gpu().load)) << length;
  }
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomically(path, text.replace(at, from.size(), to));
    EXPECT_FALSE(file.find(ceilings_of_a_gpu().load)) << to;
  };
  damaged("750125000000000.0", "-1");
  damaged("750125000000000.0", "0");
  damaged("750125000000000.0", "1e999");
  damaged("750125000000000.0", "[1]");
  damaged("8192.0", "1.0");
  damaged("\"beside\"", "\"besides\"");
  damaged("\"multiprocessors\": 132.0", "\"multiprocessors\": \"many\"");
  damaged("\"multiprocessors\": 132.0", "\"multiprocessors\": -132.0");
}

TEST(CeilingsFile, NewMeasurementsReplaceOldOnes) {
  const TempFolder folder;
  const CeilingsFile file(folder / "ceilings.json", "this machine");
  Ceilings ceilings = round_ceilings();
  file.keep(ceilings);
  ceilings.between = 0.75;
  file.keep(ceilings);
  EXPECT_EQ(file.find(ceilings.load)->between, 0.75);
}

TEST(CeilingsFile, IgnoresFilesOfOtherMachinesAndDamagedFiles) {
  const TempFolder folder;
  const fs::path path = folder / "ceilings.json";
  CeilingsFile(path, "another machine").keep(round_ceilings());
  EXPECT_FALSE(CeilingsFile(path, "this machine").find({"float32", 2, 1}));
  for (const char* text : {"", "{", "[]", "{\"machine\":\"this machine\"}",
                           "{\"machine\":\"this machine\",\"ceilings\":[{\"dtype\":1}]}"}) {
    write_file_atomically(path, text);
    EXPECT_FALSE(CeilingsFile(path, "this machine").find({"float32", 2, 1})) << text;
  }
  CeilingsFile(path, "this machine").keep(round_ceilings());
  EXPECT_TRUE(CeilingsFile(path, "this machine").find({"float32", 2, 1}));
  const CeilingsFile nowhere("/proc/witan/ceilings.json", "this machine");
  nowhere.keep(round_ceilings());  // an unwritable cache is not an error
  EXPECT_FALSE(nowhere.find({"float32", 2, 1}));
}

// A simulated machine that can be busy and counts its measurements.
struct Machine {
  CeilingsFile file(const fs::path& path) {
    return {path,
            "this machine",
            {.measure =
                 [this](const Load& load) {
                   ++measured;
                   Ceilings c = round_ceilings();
                   c.load = load;
                   c.busy = busy;
                   if (busy) c.fma_flops /= 2, c.kernels["gemm"].seconds *= 4;
                   return c;
                 },
             .busy = [this](const Load&) { return busy; }}};
  }
  bool busy = false;
  int measured = 0;
};

TEST(CeilingsFile, MeasuresAgainWhenABusyMachineIsIdle) {
  const TempFolder folder;
  Machine machine;
  const CeilingsFile file = machine.file(folder / "ceilings.json");
  machine.busy = true;
  EXPECT_TRUE(file.get(kLoad).busy);
  EXPECT_TRUE(file.find(kLoad)->busy) << "and the file records it";
  EXPECT_EQ(file.get(kLoad).fma_flops, 100e9);
  EXPECT_EQ(machine.measured, 1) << "it would be just as slow";
  machine.busy = false;
  const Ceilings idle = file.get(kLoad);
  EXPECT_FALSE(idle.busy);
  EXPECT_EQ(idle.fma_flops, 200e9);
  EXPECT_EQ(idle.kernels.at("gemm").seconds, 1);
  EXPECT_EQ(machine.measured, 2);
  file.get(kLoad);
  EXPECT_EQ(machine.measured, 2);
}

TEST(CeilingsFile, MeasurementsOfABusyMachineNeverReplaceIdleOnes) {
  const TempFolder folder;
  Machine machine;
  const CeilingsFile file = machine.file(folder / "ceilings.json");
  file.renew(kLoad);
  machine.busy = true;
  const Ceilings kept = file.renew(kLoad);
  EXPECT_EQ(machine.measured, 2);
  EXPECT_FALSE(kept.busy);
  EXPECT_EQ(kept.fma_flops, 200e9);
  EXPECT_EQ(kept.kernels.at("gemm").seconds, 1);
  EXPECT_FALSE(file.find(kLoad)->busy);
}

TEST(CeilingsFile, RunsThatExceedACeilingRaiseIt) {
  const TempFolder folder;
  Machine machine;
  const CeilingsFile file = machine.file(folder / "ceilings.json");
  file.raise(kLoad, 1e12);
  EXPECT_FALSE(file.find(kLoad)) << "there is no ceiling yet";
  file.renew(kLoad);
  file.raise(kLoad, 150e9);
  EXPECT_EQ(file.find(kLoad)->fma_flops, 200e9);
  EXPECT_FALSE(file.find(kLoad)->busy);
  file.raise(kLoad, 250e9);
  EXPECT_EQ(file.find(kLoad)->fma_flops, 250e9);
  EXPECT_TRUE(file.find(kLoad)->busy) << "so were its kernels";
  EXPECT_EQ(file.get(kLoad).fma_flops, 250e9) << "measured again, and at least the speed reached";
  EXPECT_EQ(machine.measured, 2);
}

TEST(Ceilings, CombineTheFasterOfTwoMeasurements) {
  Ceilings one = round_ceilings(), other = round_ceilings();
  one.kernels["gemm"] = {25e9, 1e9, 0.25};  // a different amount of work, and twice as fast
  one.kernels["rope"] = {1e9, 1e9, 1};
  one.exchange["all_reduce"] = 3e9;
  one.copy_bytes = 5e9;
  one.between = 0.125;
  other.busy = true;
  const Ceilings fastest = fastest_of(one, other);
  EXPECT_EQ(fastest.kernels.at("gemm").seconds, 0.25);
  EXPECT_EQ(fastest.kernels.at("norm").seconds, 1);
  EXPECT_TRUE(fastest.kernels.contains("rope"));
  EXPECT_EQ(fastest.exchange.at("all_reduce"), 3e9);
  EXPECT_EQ(fastest.exchange.at("all_to_all_equal"), 4e9);
  EXPECT_EQ(fastest.fma_flops, 200e9);
  EXPECT_EQ(fastest.copy_bytes, 10e9);
  EXPECT_EQ(fastest.between, 0.125);
  EXPECT_TRUE(fastest.busy);
}

}  // namespace
}  // namespace witan
