#include "reliability/small_runs.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reliability/file_log.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/checkpoint/store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/saved_config.h"

namespace witan::test {
namespace {

constexpr const char* kRun = "run";

RunConfig base_config() {
  RunConfig config = testing::small_config();
  config.model.num_layers = 1;
  config.model.hidden_size = 16;
  config.model.vocab_size = 0;
  config.model.mlp.ffn_hidden_size = 8;
  config.model.moe.num_experts = 4;
  config.data.bpe.vocab_size = 260;
  config.data.held_out_fraction = 0.1;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.train_iters = 4;
  config.train.save_interval = 2;
  config.train.eval_interval = 0;
  config.train.eval_iters = 1;
  config.train.sample_tokens = 0;
  return config;
}

}  // namespace

Ended in_child(const fs::path& says, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    Json report = {{"message", ""}};
    int code = 0;
    try {
      body();
    } catch (const Error& e) {
      code = static_cast<int>(e.code());
      report["message"] = e.what();
    } catch (const std::exception& e) {
      code = 1;
      report["message"] = e.what();
    }
    report["calls"] = calls_seen();
    std::ofstream(says) << report.dump();
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Ended ended;
  ended.killed = WIFSIGNALED(status);
  if (ended.killed) return ended;
  ended.code = WEXITSTATUS(status);
  const Json report = Json::parse(read_file(says));
  ended.message = report["message"];
  ended.calls = report["calls"];
  return ended;
}

std::string name_of(const Variant& variant) {
  return cat(variant.ranks, " ranks, ",
             variant.dense ? std::string("dense") : cat("experts divided by ", variant.expert), ", ", variant.dtype,
             ", keep_last ", variant.keep_last, variant.replaces ? ", replacing" : "",
             variant.from_text ? ", from text" : "", variant.keep_best ? ", keep_best 1" : "");
}

std::vector<Variant> all_variants() {
  std::vector<Variant> all;
  const std::pair<int64_t, int64_t> layouts[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
  for (const char* dtype : {"float32", "bfloat16"})
    for (const auto& [ranks, expert] : layouts)
      all.push_back({ranks, expert, dtype, false, static_cast<int64_t>(all.size() % 2) + 1, false});
  for (const int64_t ranks : {1, 2, 4}) all.push_back({ranks, 1, "float32", true, 1, false});
  for (const auto& [ranks, expert] : layouts) all.push_back({ranks, expert, "bfloat16", false, 2, true});
  return all;
}

bool thorough() {
  return std::getenv("WITAN_RELIABILITY") != nullptr;
}

SmallRuns::SmallRuns() : base_(base_config()) {
  std::ofstream text(folder_ / "text.txt");
  const Philox rng(5, 5);
  const char* words[] = {"the ", "witan ", "meets ", "in ", "winter ", "and ", "speaks ", "of ", "grain.\n\n"};
  for (uint64_t word = 0; word < 600; ++word) text << words[rng.below(std::size(words), word)];
  text.close();
  base_.data.data = (folder_ / "text.txt").string();
  base_.train.runs_folder = folder_.path().string();
  base_.train.run = "prepared";
  std::FILE* quiet = std::fopen("/dev/null", "w");
  {
    Progress progress(quiet, progress_options(quiet));
    data_ = prepare_run_data(base_, RunFolder(folder_.path(), "prepared"), progress);
  }
  std::fclose(quiet);
}

SmallRuns::Prepared SmallRuns::prepare(const Variant& variant) const {
  static int number = 0;
  Prepared prepared;
  prepared.config = base_;
  prepared.config.parallel = {variant.ranks, variant.expert, 1};
  prepared.config.model.dtype = variant.dtype;
  if (variant.dense) prepared.config.model.moe.num_experts = 0;
  prepared.config.train.keep_last = variant.keep_last;
  if (variant.keep_best) {
    prepared.config.train.keep_best = 1;
    prepared.config.train.save_interval = 1;
  }
  prepared.config.train.run = kRun;
  prepared.from_text = variant.from_text;
  const Plan plan = make_plan(resolve(prepared.config, {.vocabulary = data_.tokenizer->vocab_size()}));
  prepared.plan = run_plan(plan);
  prepared.before = folder_ / cat("before-", number++);
  fs::create_directories(prepared.before);
  if (!variant.from_text) {
    fs::create_directory(prepared.before / kRun);
    fs::copy_file(folder_ / "prepared" / "tokenizer.json", prepared.before / kRun / "tokenizer.json");
  }

  const fs::path run = fresh(prepared);
  const Ended ended = train(prepared, run);
  EXPECT_EQ(ended.code, 0) << ended.message;
  prepared.whole = final_state(run);
  if (variant.replaces) {
    const fs::path shard = run / "checkpoints" / "step-4" / "shard-00000.safetensors";
    std::fstream(shard, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('\x55');
    fs::remove_all(prepared.before / kRun);
    fs::copy(run, prepared.before / kRun, fs::copy_options::recursive);
  }
  fs::remove_all(run.parent_path());
  return prepared;
}

fs::path SmallRuns::fresh(const Prepared& prepared) const {
  fs::remove_all(place());
  fs::copy(prepared.before, place(), fs::copy_options::recursive);
  return prepared.from_text ? place() / "runs" / kRun : place() / kRun;
}

Ended SmallRuns::train(const Prepared& prepared, const fs::path& run, const Fault& fault, const fs::path& log) const {
  return in_child(folder_ / "says.json", [&] {
    if (!log.empty()) log_operations(place());
    RunConfig config = prepared.config;
    config.train.runs_folder = run.parent_path().string();
    std::FILE* quiet = std::fopen("/dev/null", "w");
    Progress progress(quiet, progress_options(quiet));
    const RunFolder folder(run.parent_path(), kRun);
    RunStart start = find_start(folder, config.train);
    if (start.step() == config.train.train_iters) return;
    const RunData data = prepared.from_text ? prepare_run_data(config, folder, progress) : data_;
    if (prepared.from_text) start.config = config_to_save(config);
    arm(folder.checkpoints(), fault);
    const RunEvent event{.name = kRun, .started = "2026-01-01T00:00:00Z", .config_hash = "h", .total_steps = 4};
    witan::train(resolve(config, {.vocabulary = data.tokenizer->vocab_size()}), prepared.plan, data, start, event,
                 progress);
    if (!log.empty()) write_operations(log);
  });
}

std::string final_state(const fs::path& run) {
  std::string state;
  for (int rank = 0; rank < 4; ++rank) {
    const fs::path shard = run / "checkpoints" / "step-4" / cat("shard-0000", rank, ".safetensors");
    if (fs::exists(shard)) state += read_file(shard);
  }
  return state;
}

int64_t newest(const fs::path& run) {
  std::vector<std::string> warnings;
  const auto checkpoint = latest_checkpoint(run / "checkpoints", warnings);
  return checkpoint ? checkpoint->step : 0;
}

}  // namespace witan::test
