// Rewards by a program of the user's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/train/rollouts/rewards.h"

namespace witan {

// A reward that cannot be had: the message names the cause and the way out. Nothing has been trained with the rewards
// of the same sampling.
class RewardError : public Error {
 public:
  explicit RewardError(const std::string& message) : Error(ExitCode::data, message) {}
};

struct RewardProgram {
  std::string command;     // run by sh
  double seconds = 60;     // of each run
  int64_t workers = 1;     // processes that share the answers
  int64_t retries = 0;     // runs after a failed one, of each worker
  int64_t memory_mib = 0;  // address space of each process; 0: no limit
};

// The rewards of `sampled`. Each worker reads one JSON object a line from its standard input, {"prompt", "completion",
// "answer"}, and writes a line for each, in order: a number, or an object with a number as its "reward". Nothing that a
// model writes becomes part of the command. The program's standard error is shown in messages. Throws RewardError if it
// takes longer than its time, ends with another code than 0, or writes fewer or more lines, something else, or too
// much, each time that it is run; it is killed then, with all processes that it started in its group.
std::vector<double> run_reward_program(const RewardProgram& program, const std::vector<SampledAnswer>& sampled);

// A program's reply to an answer: its reward, or the next messages of the conversation.
struct ProgramReply {
  std::optional<double> reward;
  std::vector<std::string> messages = {};  // JSON objects as normal_message() has them; empty: the conversation ends
};

// The same for conversations (max_turns above 1). Lines read have the answer's "turn", whether it is "final", and all
// "messages" from the first answer on, besides; a line written may be an object with "messages", the next ones: results
// of tools or a user's message, perhaps after the assistant's own message as the chat template is to see it. A final
// answer needs a reward. Throws RewardError for what run_reward_program() does, and for other messages.
std::vector<ProgramReply> run_conversation_program(const RewardProgram& program,
                                                   const std::vector<SampledAnswer>& sampled);

}  // namespace witan
