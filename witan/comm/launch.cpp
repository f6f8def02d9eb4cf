#include "witan/comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "witan/base/error.h"

namespace witan {
namespace {

struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorch = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

constexpr int kMostRanks = 1 << 16, kMostPort = 65535, kDefaultPort = 29500;

// The variable as a number from `least` to `most`; nothing where it is unset.
std::optional<int> number(const Environment& environment, const char* name, int least, int most) {
  const char* text = name == nullptr ? nullptr : environment(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, value);
  require<ConfigError>(read.ec == std::errc() && read.ptr == end && value >= least && value <= most,
                       "environment: ", name, " = \"", text, "\" is no number from ", least, " to ", most);
  return value;
}

std::optional<Names> launcher(const Environment& environment) {
  if (environment(kTorch.rank) != nullptr || environment(kTorch.size) != nullptr) return kTorch;
  if (environment(kOpenMpi.rank) != nullptr) return kOpenMpi;
  if (environment(kSlurm.rank) != nullptr && environment("SLURM_STEP_ID") != nullptr) return kSlurm;
  return std::nullopt;
}

bool on_several_hosts(const Environment& environment, const Names& names, int size) {
  if (number(environment, names.local_size, 1, kMostRanks).value_or(size) < size) return true;
  return names.rank == kSlurm.rank && number(environment, "SLURM_NNODES", 1, kMostRanks).value_or(1) > 1;
}

Endpoint master_of(const Environment& environment, const Names& names, int size) {
  const char* address = environment("MASTER_ADDR");
  require<ConfigError>(address != nullptr || !on_several_hosts(environment, names, size),
                       "environment: the ranks are on several hosts, and MASTER_ADDR does not say on which rank 0 is; "
                       "set it to that host's name, for all of them");
  Endpoint master{address == nullptr ? "127.0.0.1" : address,
                  number(environment, "MASTER_PORT", 1, kMostPort).value_or(kDefaultPort)};
  const char* store = environment("TORCHELASTIC_USE_AGENT_STORE");
  if (store != nullptr && std::string_view(store) == "True") master.port = master.port % kMostPort + 1;
  return master;
}

}  // namespace

std::optional<Launch> find_launch(const Environment& environment) {
  const auto names = launcher(environment);
  if (!names) return std::nullopt;
  const auto size = number(environment, names->size, 1, kMostRanks);
  if (size == 1) return std::nullopt;
  require<ConfigError>(size.has_value(), "environment: ", names->rank, " is set, but ", names->size, " is not");
  const auto rank = number(environment, names->rank, 0, *size - 1);
  require<ConfigError>(rank.has_value(), "environment: ", names->size, " = ", *size, ", but ", names->rank,
                       " does not say which of these ranks this process is; unset it to train in one process");
  Launch launch;
  launch.size = *size;
  launch.rank = *rank;
  launch.local_rank = number(environment, names->local_rank, 0, *size - 1);
  launch.master = master_of(environment, *names, *size);
  if (const char* secret = environment("WITAN_JOB_SECRET")) launch.secret = secret;
  require<ConfigError>(
      !launch.secret.empty() || is_loopback(launch.master.address), "MASTER_ADDR = ", launch.master.address,
      " can be reached from other hosts, so the ranks need a secret that they know each other by: set "
      "WITAN_JOB_SECRET to the same random text for all of them, for example of `openssl rand -hex 16`");
  return launch;
}

std::optional<Launch> find_launch() {
  return find_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace witan
