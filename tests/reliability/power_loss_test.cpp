// The power fails at every moment of runs that save; whatever the disk may then contain, no saved checkpoint is lost.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <set>

#include "reliability/crash_states.h"
#include "reliability/small_runs.h"
#include "witan/base/hash.h"
#include "witan/report/events/metrics.h"

namespace witan::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITAN_SKIP_POWER_LOSS() GTEST_SKIP() << "forks processes that start threads"
#else
#define WITAN_SKIP_POWER_LOSS() static_cast<void>(0)
#endif

constexpr uint64_t kSeed = 20;

std::vector<Variant> power_variants() {
  const Variant from_text{1, 1, "float32", false, 1, false, true}, experts{2, 2, "bfloat16", false, 1},
      replacing{1, 1, "bfloat16", false, 2, true}, best{1, 1, "float32", true, 1, false, false, true};
  if (!thorough()) return {from_text, replacing};
  return {from_text,
          experts,
          replacing,
          best,
          {1, 1, "float32", false, 2},
          {2, 1, "float32", true, 2},
          {2, 2, "bfloat16", false, 2, true},
          {2, 1, "bfloat16", false, 2, false, true, true}};
}

std::string hash_of(const Tree& tree) {
  Hasher hasher;
  const auto add = [&](const std::string& text) {
    const uint64_t size = text.size();
    hasher.update(&size, sizeof size);
    hasher.update(text.data(), text.size());
  };
  for (const auto& [path, bytes] : tree) {
    add(path + (bytes ? "" : "/"));
    if (bytes) add(*bytes);
  }
  return hasher.hex();
}

Tree below(const Tree& tree, const std::string& folder) {
  Tree part;
  for (auto item = tree.lower_bound(folder + "/"); item != tree.end() && item->first.starts_with(folder + "/"); ++item)
    part.insert({item->first.substr(folder.size() + 1), item->second});
  return part;
}

// A run with logged operations, and the states that they can leave on the disk.
class PowerLoss {
 public:
  PowerLoss(const SmallRuns& runs, const Variant& variant) : runs_(runs), prepared_(runs.prepare(variant)) {
    run_ = runs_.fresh(prepared_);
    before_ = read_tree(runs_.place());
    const fs::path log = folder_ / "log";
    const Ended ended = runs_.train(prepared_, run_, {}, log);
    EXPECT_EQ(ended.code, 0) << ended.message;
    operations_ = read_operations(log);
    const Tree there = read_tree(runs_.place());
    name_ = run_.lexically_relative(runs_.place()).string();
    promised_ = newest_of(before_);
    CrashStates all(before_);
    for (const Operation& operation : operations_) {
      all.apply(operation);
      if (const int64_t step = renamed(operation)) saved_[step] = below(all.seen(), checkpoint(step));
    }
    const Tree seen = all.seen();
    for (const auto* tree : {&seen, &there})
      for (const auto& [path, bytes] : *tree)
        EXPECT_TRUE(seen.contains(path) && there.contains(path) && seen.at(path) == there.at(path))
            << path << " was changed by calls that are not logged";
    EXPECT_EQ(saved_.count(4), 1U);
    if (promised_ > 0) saved_[promised_] = below(before_, checkpoint(promised_));
  }

  // Tries the states after every `stride`-th operation.
  void try_all(size_t stride, size_t all, size_t samples) {
    CrashStates states(before_);
    int64_t renamed_step = 0;
    for (size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      states.apply(operation);
      if (const int64_t step = renamed(operation)) renamed_step = step;
      if (operation.kind == Operation::Kind::sync && operation.path == name_ + "/checkpoints" && renamed_step > 0)
        promised_ = renamed_step;
      if (i % stride != 0) continue;
      for (const auto& fates : states.choose(all, samples, Philox(kSeed, i)))
        ASSERT_NO_FATAL_FAILURE(expect_nothing_lost(states.disk(fates)))
            << "power lost after operation " << i << ", " << operation.path << " " << operation.to;
    }
  }

  size_t operations() const { return operations_.size(); }
  size_t states() const { return found_.size(); }
  size_t resumed() const { return resumed_.size(); }

 private:
  std::string checkpoint(int64_t step) const { return cat(name_, "/checkpoints/step-", step); }

  // The step of the checkpoint that this operation renames into place; 0: none.
  int64_t renamed(const Operation& operation) const {
    for (int64_t step = 1; step <= 4; ++step)
      if (operation.to == checkpoint(step)) return step;
    return 0;
  }

  int64_t newest_of(const Tree& tree) const {
    fs::remove_all(runs_.place());
    fs::create_directory(runs_.place());
    write_tree(runs_.place(), tree);
    return newest(run_);
  }

  void expect_nothing_lost(const Tree& tree) {
    const auto [state, is_new] = found_.try_emplace(hash_of(tree));
    if (is_new) {
      const int64_t found = state->second = newest_of(tree);
      if (found > 0) {
        ASSERT_TRUE(below(tree, checkpoint(found)) == saved_.at(found))
            << "step " << found << " differs from the saved checkpoint";
        ASSERT_NO_FATAL_FAILURE(expect_metrics(tree, found));
      }
      if (resumed_.insert(what_resuming_reads(tree, found)).second) {
        ASSERT_NO_FATAL_FAILURE(expect_same_end(tree, found));
      }
    }
    ASSERT_GE(state->second, promised_);
  }

  // Metrics of steps up to the checkpoint are readable, whatever happened to later ones.
  void expect_metrics(const Tree& tree, int64_t found) {
    const fs::path copy = folder_ / "metrics.jsonl";
    const auto metrics = tree.find(name_ + "/metrics.jsonl");
    ASSERT_TRUE(metrics != tree.end()) << "no metrics for the checkpoint of step  " << found;
    if (!metrics_.insert({found, *metrics->second}).second) return;
    write_tree(folder_.path(), {{"metrics.jsonl", metrics->second}});
    MetricsWriter(copy).truncate_after(found);
    const Metrics kept = read_metrics(copy);
    ASSERT_EQ(kept.steps.size(), static_cast<size_t>(found)) << *metrics->second;
    ASSERT_TRUE(kept.run.has_value());
  }

  // States end alike if they differ only in hidden folders, which are removed, in the log, in older checkpoints, or in
  // metrics, which are checked for each state.
  std::string what_resuming_reads(const Tree& tree, int64_t found) const {
    Tree read;
    for (const auto& [path, bytes] : tree) {
      const size_t hidden = path.find("/.");
      const bool run_file = path.find("/checkpoints/") == std::string::npos && !path.ends_with("/metrics.jsonl") &&
                            !path.ends_with("/train.log");
      if (hidden != std::string::npos)
        read.emplace(path.substr(0, path.find_first_of(".0123456789", hidden + 2)), std::nullopt);
      else
        read.emplace(path, run_file ? bytes : std::nullopt);
    }
    return cat(found, hash_of(read));
  }

  void expect_same_end(const Tree& tree, int64_t found) {
    const Ended resumed = runs_.train(prepared_, run_);
    std::string files;
    for (const auto& [path, bytes] : tree) files += cat("\n  ", path, bytes ? cat(" ", bytes->size()) : "/");
    ASSERT_EQ(resumed.code, 0) << resumed.message << files;
    ASSERT_TRUE(final_state(run_) == prepared_.whole) << "different final state" << files;
    if (found == 4) return;  // a finished run does not change
    ASSERT_EQ(read_metrics(run_ / "metrics.jsonl").steps.size(), 4U) << files;
  }

  const SmallRuns& runs_;
  TempFolder folder_;
  SmallRuns::Prepared prepared_;
  fs::path run_;
  std::string name_;  // of the run folder, relative to the place
  Tree before_;
  std::vector<Operation> operations_;
  std::map<int64_t, Tree> saved_;         // checkpoints by step
  int64_t promised_ = 0;                  // the newest step that was saved durably
  std::map<std::string, int64_t> found_;  // hash of a state -> step of its checkpoint
  std::set<std::string> resumed_;         // hashes of the data from which runs were resumed
  std::set<std::pair<int64_t, std::string>> metrics_;
};

TEST(PowerLoss, NeverLosesASavedCheckpoint) {
  WITAN_SKIP_POWER_LOSS();
  const SmallRuns runs;
  size_t states = 0, resumed = 0, moments = 0;
  for (const Variant& variant : power_variants()) {
    SCOPED_TRACE(name_of(variant));
    PowerLoss power(runs, variant);
    if (thorough())
      ASSERT_NO_FATAL_FAILURE(power.try_all(1, 256, 24));
    else
      ASSERT_NO_FATAL_FAILURE(power.try_all(7, 4, 2));
    states += power.states();
    resumed += power.resumed();
    moments += power.operations();
    if (thorough())
      std::cout << name_of(variant) << ": " << power.operations() << " operations, " << power.states() << " states, "
                << power.resumed() << " resumed" << std::endl;
  }
  std::cout << states << " states of the disk after " << moments << " operations; " << resumed
            << " of them, which differ for resuming, were resumed\n";
}

}  // namespace
}  // namespace witan::test
