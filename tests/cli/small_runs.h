// A folder with a text and runs of tiny models, for tests of commands that read and write runs.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/cli_support.h"
#include "witan/base/files/file.h"

namespace witan::test {

class SmallRuns : public ::testing::Test {
 protected:
  SmallRuns() { write_text(folder_ / "text.txt", some_text(400)); }

  // `runs`: whether the command takes the runs folder.
  Said run(std::vector<std::string> args, bool runs = true) const {
    if (runs) args.insert(args.end(), {"--runs-folder", (folder_ / "runs").string()});
    return witan(args);
  }
  Said done(const std::vector<std::string>& args) const {
    Said said = run(args);
    EXPECT_EQ(said.code, 0) << said.err;
    return said;
  }
  // Trains two steps on the text; `more` describes the model.
  void train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args = words_in(
        "--device cpu --seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 2 --sample-tokens 0 "
        "--held-out-fraction 0.2",
        {"train", "--run", name, "--data", folder_ / "text.txt"});
    args.insert(args.end(), more.begin(), more.end());
    done(args);
  }
  void train_small(const std::string& name, const std::vector<std::string>& more) const {
    train_with_experts("4", name, more);
  }
  void train_dense(const std::string& name, const std::vector<std::string>& more) const {
    train_with_experts("0", name, more);
  }
  // Writes chats.jsonl: 40 conversations of a question and its answer.
  void write_chats() const {
    std::string rows;
    for (int i = 0; i < 40; ++i)
      rows += R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})"
              "\n";
    write_text(folder_ / "chats.jsonl", rows);
  }
  // Starts fine-tuning on conversations in `data` with the template chat.jinja; `more` describes the model.
  std::vector<std::string> sft_args(const std::string& name, const std::string& data,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> args = words_in(
        "--sft --device cpu --ranks 1 --micro-batch-size 1 --global-batch-size 2 --train-iters 2 --sample-tokens 0 "
        "--held-out-fraction 0.2",
        {"train", "--run", name, "--data", folder_ / data, "--chat-template", folder_ / "chat.jinja"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  std::string file(const std::string& name) const { return read_file(folder_ / name); }

  TempFolder folder_;

 private:
  void train_with_experts(const std::string& experts, const std::string& name,
                          const std::vector<std::string>& more) const {
    Words args = words_in(
        "--tokenizer-vocab-size 300 --num-layers 2 --hidden-size 32 --ffn-hidden-size 32 --num-experts " + experts);
    args.insert(args.end(), more.begin(), more.end());
    train(name, args);
  }
};

}  // namespace witan::test
