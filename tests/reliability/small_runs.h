// Small runs in processes of their own, which may be killed, and what they leave.
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

// What differs between the runs that are tried. All train 4 steps and save after 2 and 4.
struct Variant {
  int64_t ranks = 1, expert = 1;
  std::string dtype = "float32";
  bool dense = false;
  int64_t keep_last = 2;
  bool replaces = false;   // resumes from step 2 and overwrites a damaged checkpoint of step 4
  bool from_text = false;  // begins without a run folder, and tokenizes its text
  bool keep_best = false;  // keeps one more for its validation loss, and saves every step
};
std::string name_of(const Variant& variant);

// 21: every layout in float32 and bfloat16, dense models, those that replace a checkpoint; keeping one or two.
std::vector<Variant> all_variants();

// Whether everything is to be tried, rather than a part that takes seconds (make reliability).
bool thorough();

struct Ended {
  bool killed = false;
  int code = 0;                    // if it was not
  std::string message;             // of its error
  std::vector<std::string> calls;  // that could have been hit
};

// Runs `body` in a child and returns how it ended; what it says comes back by the file `says`.
Ended in_child(const fs::path& says, const std::function<void()>& body);

// Made-up text, tokenized once; run folders that begin as copies of one.
class SmallRuns {
 public:
  SmallRuns();

  // A prepared variant: its plan, and a folder as it is before the run.
  struct Prepared {
    RunConfig config;
    RunPlan plan;
    fs::path before;
    bool from_text = false;
    std::string whole;  // the state at the end of an undisturbed run: every shard's bytes
  };
  Prepared prepare(const Variant& variant) const;

  // A folder as it was before the run.
  fs::path fresh(const Prepared& prepared) const;
  // Trains there, in a process of its own, hit while it saves. Writes the log of its operations on files to `log`.
  Ended train(const Prepared& prepared, const fs::path& run, const Fault& fault = {}, const fs::path& log = {}) const;
  // What fresh() makes anew, and its run folder lies in.
  fs::path place() const { return folder_ / "now"; }

 private:
  TempFolder folder_;
  RunData data_;
  RunConfig base_;
};

// The bytes of every shard of the run's step-4; "" when there is none.
std::string final_state(const fs::path& run);
// The newest whole checkpoint's step; 0: none.
int64_t newest(const fs::path& run);

}  // namespace witan::test
