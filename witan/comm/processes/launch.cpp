#include "witan/comm/processes/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

// The variables of one launcher; null where it has none of the kind, or where it does not matter.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
  const char *nodes, *node_list;  // how many hosts, and which, the first one that of rank 0
  const char *job, *step;         // numbers that other jobs of the same hosts do not have
  const char* unbind;             // how it is kept from binding processes to cores
};
constexpr Names kTorch = {"RANK",
                          "WORLD_SIZE",
                          "LOCAL_RANK",
                          "LOCAL_WORLD_SIZE",
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          "start without taskset or numactl"};
constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            nullptr,
                            nullptr,
                            "PMIX_NAMESPACE",
                            nullptr,
                            "start with mpirun --bind-to none"};
constexpr Names kHydra = {"PMI_RANK",        "PMI_SIZE", "MPI_LOCALRANKID",
                          "MPI_LOCALNRANKS", nullptr,    nullptr,
                          nullptr,           nullptr,    "start with mpirun -bind-to none (Intel MPI: I_MPI_PIN=off)"};
// Variables of the step, since those of the job (SLURM_NTASKS, SLURM_NNODES) are set in a shell of `salloc` too.
constexpr Names kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                          nullptr,        "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
                          "SLURM_JOB_ID", "SLURM_STEP_ID",        "start with srun --cpu-bind=none"};

constexpr const char* kSecret = "WITAN_JOB_SECRET";
constexpr int kMostLaunched = 1 << 16, kMostPort = 65535, kDefaultPort = 29500;

const char* value(const Environment& environment, const char* name) {
  return name == nullptr ? nullptr : environment(name);
}

std::optional<int> parse_number(const char* text, int least, int most) {
  int number = 0;
  const char* end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, number);
  const bool good = read.ec == std::errc() && read.ptr == end && number >= least && number <= most;
  return good ? std::optional(number) : std::nullopt;
}

// The variable as a number from `least` to `most`; nothing where it is unset.
std::optional<int> number(const Environment& environment, const char* name, int least, int most) {
  const char* text = value(environment, name);
  if (text == nullptr) return std::nullopt;
  const auto number = parse_number(text, least, most);
  require<ConfigError>(number.has_value(), "environment: ", name, " = \"", text, "\" must be a number from ", least,
                       " to ", most);
  return number;
}

// Slurm comes last: where mpirun starts its daemons through srun, their processes have variables of both, and those of
// Slurm are the daemon's.
std::optional<Names> launcher(const Environment& environment) {
  if (environment(kTorch.rank) != nullptr || environment(kTorch.size) != nullptr) return kTorch;
  if (environment(kOpenMpi.rank) != nullptr) return kOpenMpi;
  if (environment(kHydra.rank) != nullptr && environment(kHydra.local_rank) != nullptr) return kHydra;
  if (environment(kSlurm.rank) != nullptr && environment(kSlurm.size) != nullptr) return kSlurm;
  if (environment(kHydra.rank) != nullptr) return kHydra;
  return std::nullopt;
}

bool on_several_hosts(const Environment& environment, const Names& names, int size) {
  return number(environment, names.local_size, 1, kMostLaunched).value_or(size) < size ||
         number(environment, names.nodes, 1, kMostLaunched).value_or(1) > 1;
}

// The first name of Slurm's list: "rack[1-2]node[07-12,15],other" begins with rack1node07.
std::string first_host(std::string_view list) {
  std::string host;
  bool skips = false;  // inside brackets, after their first item
  for (size_t i = 0; i < list.size() && (list[i] != ',' || skips); ++i) {
    const char c = list[i];
    if (c == ']') {
      skips = false;
    } else if (c == '[') {
      while (i + 1 < list.size() && std::isdigit(static_cast<unsigned char>(list[i + 1])) != 0) host += list[++i];
      skips = true;
    } else if (!skips) {
      host += c;
    }
  }
  return host;
}

// One of 8192 that no system assigns by itself, so that jobs which share a host do not meet there by chance.
int port_of(std::string_view job) {
  constexpr uint64_t kFirst = 20480, kPorts = 8192;
  Hasher hasher;
  hasher.update(job.data(), job.size());
  return static_cast<int>(kFirst + hasher.low64() % kPorts);
}

int master_port(const Environment& environment, const Names& names) {
  if (const auto port = number(environment, "MASTER_PORT", 1, kMostPort)) {
    const char* store = environment("TORCHELASTIC_USE_AGENT_STORE");
    return store != nullptr && std::string_view(store) == "True" ? *port % kMostPort + 1 : *port;
  }
  const char *job = value(environment, names.job), *step = value(environment, names.step);
  return job == nullptr ? kDefaultPort : port_of(cat(job, ".", step == nullptr ? "" : step));
}

Endpoint master_of(const Environment& environment, const Names& names, int size) {
  const char* address = environment("MASTER_ADDR");
  const char* hosts = value(environment, names.node_list);
  std::string master = address == nullptr ? "127.0.0.1" : address;
  if (address == nullptr && on_several_hosts(environment, names, size)) {
    require<ConfigError>(hosts != nullptr,
                         "environment: the ranks are on several hosts, but MASTER_ADDR is not set; set it to the host "
                         "name of rank 0, for all ranks");
    master = first_host(hosts);
  }
  return {master, master_port(environment, names)};
}

}  // namespace

const char* name_of(CommEngine engine) {
  switch (engine) {
    case CommEngine::ucx:
      return "ucx";
    case CommEngine::sockets:
      return "sockets";
    default:
      return "auto";
  }
}

CommEngine engine_named(std::string_view name) {
  for (const CommEngine engine : {CommEngine::automatic, CommEngine::ucx, CommEngine::sockets})
    if (name == name_of(engine)) return engine;
  throw ConfigError(cat("environment: ", kEngineVariable, " = \"", name, "\" must be auto, ucx or sockets"));
}

std::optional<Launch> find_launch(const Environment& environment) {
  const char* engine = environment(kEngineVariable);  // a wrong one is none for a single process either
  const CommEngine asked = engine == nullptr ? CommEngine::automatic : engine_named(engine);
  const auto names = launcher(environment);
  if (!names) return std::nullopt;
  const auto size = number(environment, names->size, 1, kMostLaunched);
  if (size == 1) return std::nullopt;
  require<ConfigError>(size.has_value(), "environment: ", names->rank, " is set, but ", names->size, " is not");
  const auto rank = number(environment, names->rank, 0, *size - 1);
  require<ConfigError>(rank.has_value(), "environment: ", names->size, " = ", *size, ", but ", names->rank,
                       " is not set; set it to the rank of this process, or unset both to train in one process");
  Launch launch;
  launch.size = *size;
  launch.rank = *rank;
  launch.local_rank = number(environment, names->local_rank, 0, *size - 1);
  launch.master = master_of(environment, *names, *size);
  if (const char* secret = environment(kSecret)) launch.secret = secret;
  launch.engine = asked;
  launch.unbind = names->unbind;
  require<ConfigError>(
      !launch.secret.empty() || is_loopback(launch.master.address), "environment: rank 0 listens at ",
      launch.master.address,
      ", which other hosts can reach, so that ranks must authenticate each other: set WITAN_JOB_SECRET to the same "
      "random text for all of them, for example the output of `openssl rand -hex 16`");
  return launch;
}

std::optional<Launch> find_launch() {
  static std::string secret;
  if (char* given = std::getenv(kSecret)) {
    secret = given;
    ::explicit_bzero(given, secret.size());  // where the kernel shows it
    ::unsetenv(kSecret);
  }
  return find_launch([](const char* name) -> const char* {
    return std::string_view(name) == kSecret && !secret.empty() ? secret.c_str() : std::getenv(name);
  });
}

std::optional<ProcessNumber> find_process(const Environment& environment) {
  const auto names = launcher(environment);
  if (!names) return std::nullopt;
  const char *size_text = value(environment, names->size), *rank_text = value(environment, names->rank);
  if (size_text == nullptr || rank_text == nullptr) return std::nullopt;
  const auto size = parse_number(size_text, 2, kMostLaunched);
  const auto rank = parse_number(rank_text, 0, size.value_or(1) - 1);
  if (!size || !rank) return std::nullopt;
  return ProcessNumber{*rank, *size};
}

std::optional<ProcessNumber> find_process() {
  return find_process([](const char* name) { return std::getenv(name); });
}

namespace {

// The cores in the affinity mask of this process, on hosts of any size; 0 if unknown.
int cores_of_mask() {
  for (int most = 1024; most <= 1 << 16; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(static_cast<size_t>(most)),
                                                                [](cpu_set_t* set) { CPU_FREE(set); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    if (::sched_getaffinity(0, bytes, mask.get()) == 0) return CPU_COUNT_S(bytes, mask.get());
  }
  return 0;
}

// "0-3,8": 5; 0 for what is no such list.
int count_of_list(const std::string& list) {
  std::istringstream ranges(list);
  int count = 0;
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(ends >> first)) return 0;
    last = ends >> dash >> last && dash == '-' ? last : first;
    count += std::max(last - first + 1, 0);
  }
  return count;
}

// The list in the file of this name, of the folder or of the next one around it that has one; 0: none has.
int cores_of_folder(const fs::path& root, const std::string& folder, const char* name) {
  for (fs::path path = root / folder;; path = path.parent_path()) {
    std::ifstream file(path / name);
    std::string list;
    if (std::getline(file, list))
      if (const int count = count_of_list(list); count > 0) return count;
    if (path == root || !path.has_relative_path()) return 0;
  }
}

// The cores of the group of processes that this one is in; 0: unknown. Lines of `group` are "0::/PATH" in version 2 of
// cgroups, "N:cpuset:/PATH" in version 1 (cgroups(7)).
int cores_of_group(const fs::path& cgroups, const fs::path& group) {
  int cores = 0;
  std::ifstream lines(group);
  for (std::string line; cores == 0 && std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(":/");
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, std::max(second, first + 1) - first - 1);
    const std::string folder = line.substr(second + 2);
    if (first == second - 1) cores = cores_of_folder(cgroups, folder, "cpuset.cpus.effective");
    if (controllers == "cpuset") cores = cores_of_folder(cgroups / "cpuset", folder, "cpuset.cpus");
  }
  return cores;
}

}  // namespace

CoreBinding core_binding(int processes, const fs::path& cgroups, const fs::path& group) {
  CoreBinding binding;
  binding.processes = processes;
  binding.own = cores_of_mask();
  const int online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), granted = cores_of_group(cgroups, group);
  binding.host = granted > 0 ? std::min(granted, online) : online;
  return binding;
}

std::string binding_warning(const CoreBinding& binding, const Launch& launch) {
  const int share = binding.host / std::max(binding.processes, 1);
  if (binding.own == 0 || binding.own >= share) return "";
  return cat("warning: the launcher binds this process to ", binding.own, " of ", binding.host,
             " cores, though its share as one of ", binding.processes, " processes here is ", share,
             ": its threads take turns, which can make steps many times slower; ", launch.unbind);
}

}  // namespace witan
