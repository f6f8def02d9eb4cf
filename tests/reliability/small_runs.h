// Small runs in separate processes, which may be killed, and the files that they leave.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reliability/faults.h"
#include "support/temp_folder.h"
#include "witan/planner/plan.h"
#include "witan/train/loop/trainer.h"

namespace witan::test {

// The differences between the tested runs. All train 4 steps and save after steps 2 and 4.
struct Variant {
  int64_t ranks = 1, expert = 1;
  std::string dtype = "float32";
  bool dense = false;
  int64_t keep_last = 2;
  bool replaces = false;   // resumes from step 2 and overwrites a damaged checkpoint of step 4
  bool from_text = false;  // starts without a run folder and tokenizes its text
  bool keep_best = false;  // keeps one more checkpoint for its validation loss, and saves every step
};
std::string name_of(const Variant& variant);

// 21 variants: every layout in float32 and bfloat16, dense models, and runs that replace a checkpoint, keeping one or
// two.
std::vector<Variant> all_variants();

// Whether to try everything (make reliability) or a part that takes seconds.
bool thorough();

struct Ended {
  bool killed = false;
  int code = 0;                    // exit code unless killed
  std::string message;             // message of its error
  std::vector<std::string> calls;  // calls that could be hit
};

// Runs `body` in a child process and returns how it ended; results are passed through the file `says`.
Ended in_child(const fs::path& says, const std::function<void()>& body);

// Generated text, tokenized once, and run folders that start as copies of one.
class SmallRuns {
 public:
  SmallRuns();

  // A prepared variant: its plan, and its folder before the run.
  struct Prepared {
    RunConfig config;
    RunPlan plan;
    fs::path before;
    bool from_text = false;
    std::string whole;  // final state of an undisturbed run: the bytes of every shard
  };
  Prepared prepare(const Variant& variant) const;

  // Restores the folder to its state before the run.
  fs::path fresh(const Prepared& prepared) const;
  // Trains there in a separate process, with this fault while it saves. Writes the log of its file operations to `log`.
  Ended train(const Prepared& prepared, const fs::path& run, const Fault& fault = {}, const fs::path& log = {}) const;
  // The folder that fresh() recreates; it contains the run folder.
  fs::path place() const { return folder_ / "now"; }

 private:
  TempFolder folder_;
  RunData data_;
  RunConfig base_;
};

// The bytes of all shards of step 4; "" if there are none.
std::string final_state(const fs::path& run);
// The step of the newest complete checkpoint; 0: none.
int64_t newest(const fs::path& run);

}  // namespace witan::test
