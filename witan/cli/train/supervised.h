// What `witan run` tells the processes of `witan train` that it starts, in their environment: that the run goes on
// after ranks were lost, and in which layout.
#pragma once

#include <optional>
#include <string>

#include "witan/cli/args/run_config.h"
#include "witan/cli/train/train_call.h"

namespace witan::cli {

inline constexpr const char* kLayoutVariable = "WITAN_RUN_LAYOUT";   // TOML, as layout_keys() writes it
inline constexpr const char* kResumeVariable = "WITAN_RUN_RESUMES";  // "1": after an earlier start of the same call
inline constexpr const char* kCallVariable = "WITAN_RUN_CALL";       // what stands before `train`: "run --ranks 4 --"

struct Supervised {
  std::string layout;
  bool resumes = false;
  std::string call = {};
};

// Of this process; nothing where `witan run` did not start it.
std::optional<Supervised> find_supervised();

// What was asked of the first start is not done again: to begin anew, and to trace steps that lie behind.
TrainOptions options_of(TrainOptions options, const Supervised& supervised);

// Sets the layout over what preset, file and flags say. Throws ConfigError for what is no layout.
void lay_out(GivenConfig& given, const Supervised& supervised);

}  // namespace witan::cli
