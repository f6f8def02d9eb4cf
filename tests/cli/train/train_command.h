// A small model, trained from text of its own by `witan train`.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cli/cli_support.h"

namespace witan::test {

class TrainCommandTest : public ::testing::Test {
 protected:
  TrainCommandTest() {
    for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(40));
  }
  Said train(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"train",       "--runs-folder",       own_ / "runs", "--data",
                                     own_ / "text", "--train-iters",       "2",           "--seq-length",
                                     "16",          "--hidden-size",       "16",          "--num-layers",
                                     "1",           "--num-experts",       "2",           "--ffn-hidden-size",
                                     "16",          "--sample-tokens",     "3",           "--tokenizer-vocab-size",
                                     "300",         "--held-out-fraction", "0.05"};
    // A flag may be given once: a later value takes the place of the earlier one.
    for (size_t i = 0; i < more.size(); ++i) {
      const auto given = std::find(args.begin(), args.end(), more[i]);
      if (more[i].starts_with("--") && given != args.end() && i + 1 < more.size())
        *(given + 1) = more[++i];
      else
        args.push_back(more[i]);
    }
    return witan(args);
  }
  TempFolder own_;
};

}  // namespace witan::test
