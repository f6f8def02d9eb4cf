#include "witan/cli/environment.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/comm/processes/launch.h"

namespace witan::cli {
namespace {

constexpr std::string_view kPrefix = "WITAN_";

constexpr std::string_view kUser[] = {"WITAN_JOB_SECRET", "WITAN_COMM_ENGINE", "WITAN_COMM_PEERS", "WITAN_LIBRARY_PATH",
                                      "WITAN_API_KEY"};
constexpr std::string_view kSupervisor[] = {"WITAN_RUN_LAYOUT", "WITAN_RUN_RESUMES", "WITAN_RUN_CALL"};
// Variables of tests and scripts, which the program inherits. So are all that begin with WITAN_TEST_.
constexpr std::string_view kDevelopers[] = {"WITAN_LONG_TESTS",      "WITAN_UPDATE_GOLDEN", "WITAN_RELIABILITY",
                                            "WITAN_CHAT_TEMPLATES",  "WITAN_CHAT_GOLDEN",   "WITAN_CMAKE",
                                            "WITAN_SANITIZE_SECONDS"};

bool known(std::string_view name) {
  const auto has = [&](const auto& list) { return std::ranges::find(list, name) != std::end(list); };
  return has(kUser) || has(kSupervisor) || has(kDevelopers) || name.starts_with("WITAN_TEST_");
}

}  // namespace

std::span<const std::string_view> user_variables() {
  return kUser;
}

std::span<const std::string_view> supervisor_variables() {
  return kSupervisor;
}

std::vector<std::string> environment_warnings(const char* const* environment) {
  std::vector<std::string> warnings;
  const std::vector<std::string> names(std::begin(kUser), std::end(kUser));
  bool supervised = false;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable = *environment, name = variable.substr(0, variable.find('='));
    if (!name.starts_with(kPrefix)) continue;
    supervised = supervised || std::ranges::find(kSupervisor, name) != std::end(kSupervisor);
    if (!known(name))
      warnings.push_back(cat("warning: environment: nothing reads ", clipped(name), suggestion(name, names)));
  }
  const auto process = find_process();
  if (supervised || (process && process->rank != 0)) warnings.clear();
  return warnings;
}

}  // namespace witan::cli
