// Reads the variables by which a launcher (mpirun, srun, torchrun ...) describes a job to its processes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// The engine that carries the messages of CPU ranks between processes.
enum class CommEngine : uint32_t {
  automatic,  // UCX where all ranks have it, else the ranks' own connections
  ucx,
  sockets,
};
const char* name_of(CommEngine engine);          // "auto", "ucx", "sockets"
CommEngine engine_named(std::string_view name);  // throws ConfigError
inline constexpr const char* kEngineVariable = "WITAN_COMM_ENGINE";

struct Launch {
  int rank = 0, size = 1;
  std::optional<int> local_rank;  // among the ranks of this host, if the launcher gives it
  Endpoint master;                // where rank 0 is met
  std::string secret;             // known only to the ranks of the job; may be empty if all are on one host
  CommEngine engine = CommEngine::automatic;
  std::string unbind = "";  // how the launcher is kept from binding processes to cores
};

// A variable's value; null where it is unset.
using Environment = std::function<const char*(const char* name)>;

// Reads the variables of launchers. Nothing unless this process is one of several ranks:
//   RANK, WORLD_SIZE, LOCAL_RANK                                       torchrun and most scripts
//   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, …_LOCAL_RANK           Open MPI's mpirun
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID                                Hydra: mpirun of MPICH and Intel MPI
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID                  srun; not the script of a batch job
// in this order. Rank 0 is met at MASTER_ADDR (127.0.0.1 when all ranks are on one host; the first host of
// SLURM_STEP_NODELIST) and MASTER_PORT (one more under torchrun, whose own store has that port; unset, a port of the
// job's number under Slurm and Open MPI, else 29500). The secret is WITAN_JOB_SECRET, and
// the engine WITAN_COMM_ENGINE (auto, ucx or sockets). Throws ConfigError.
std::optional<Launch> find_launch(const Environment& environment);
// Reads the environment of this process and removes the secret from it, since other programs of this user can read it
// (/proc/PID/environ) and child processes inherit it. Later calls still know the secret. Must not be called by two
// threads at once.
std::optional<Launch> find_launch();

// The number of this process among several, for work that only one of them does.
struct ProcessNumber {
  int rank = 0, size = 1;
};
// Reads only these two numbers from the same variables; nothing if they make no sense.
std::optional<ProcessNumber> find_process(const Environment& environment);
std::optional<ProcessNumber> find_process();  // of this process

// The cores to which a launcher has bound this process. Some bind each process to fewer cores than its share of the
// host: Open MPI's mpirun gives each of two processes one core, which the threads of a rank, of its messages and of its
// GPU then share.
struct CoreBinding {
  int own = 0;        // cores that this process may run on
  int host = 0;       // cores of the host, or of the container or job that the process is in
  int processes = 1;  // of the job, on this host
};

// The binding of this process. `cgroups`: the folder in which the kernel shows the cores of control groups; `group`:
// the file that names this process's group.
CoreBinding core_binding(int processes, const fs::path& cgroups = "/sys/fs/cgroup",
                         const fs::path& group = "/proc/self/cgroup");

// A warning with the way out if a process has less than its share; else empty.
std::string binding_warning(const CoreBinding& binding, const Launch& launch);

}  // namespace witan
