// A small model that `witan train` trains on its own text.
#pragma once

#include <string>
#include <vector>

#include "cli/cli_support.h"

namespace witan::test {

class TrainCommandTest : public ::testing::Test {
 protected:
  TrainCommandTest() {
    for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(40));
  }
  Said train(const Words& more = {}) {
    const Words args = words_in(
        "--train-iters 2 --seq-length 16 --hidden-size 16 --num-layers 1 --num-experts 2 --ffn-hidden-size 16 "
        "--sample-tokens 3 --tokenizer-vocab-size 300 --held-out-fraction 0.05",
        {"train", "--runs-folder", own_ / "runs", "--data", own_ / "text"});
    return witan(with_flags(args, more));
  }
  TempFolder own_;
};

}  // namespace witan::test
