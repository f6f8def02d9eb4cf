// Reads from the environment what a launcher (mpirun, srun, torchrun ...) tells a process about its job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// What carries the messages of CPU ranks between processes.
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
  std::optional<int> local_rank;  // among the ranks of this host, where the launcher says
  Endpoint master;                // where rank 0 is met
  std::string secret;  // that all ranks of the job know, and nobody else; may be empty where all are on one host
  CommEngine engine = CommEngine::automatic;
  std::string unbind = "";  // how the launcher is kept from binding processes to cores
};

// A variable's value; null where it is unset.
using Environment = std::function<const char*(const char* name)>;

// Nothing unless this process is one of several ranks:
//   RANK, WORLD_SIZE, LOCAL_RANK                                       torchrun and most scripts
//   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, …_LOCAL_RANK           Open MPI's mpirun
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID                                Hydra: mpirun of MPICH and Intel MPI
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID                  srun; not the script of a batch job
// in this order. Rank 0 is met at MASTER_ADDR (127.0.0.1 when all ranks are on one host; the first host of
// SLURM_STEP_NODELIST) and MASTER_PORT (one more under torchrun, whose own store has that port; unset, a port of the
// job's number under Slurm and Open MPI, else 29500). The secret is WITAN_JOB_SECRET, and
// the engine WITAN_COMM_ENGINE (auto, ucx or sockets). Throws ConfigError.
std::optional<Launch> find_launch(const Environment& environment);
// Of this process. It takes the secret out of the environment, which other programs of this user can read
// (/proc/PID/environ) and programs that this one starts inherit; later calls know it still. Not for two threads at
// once.
std::optional<Launch> find_launch();

// Which of several processes this one is, for what one of them does alone.
struct ProcessNumber {
  int rank = 0, size = 1;
};
// By the same variables, of which no more than these two numbers must be there; nothing where they say nothing that
// makes sense.
std::optional<ProcessNumber> find_process(const Environment& environment);
std::optional<ProcessNumber> find_process();  // of this process

// Notices launchers that bind each process to fewer cores than are its share of the host: Open MPI's mpirun, for one,
// gives each of two processes one core, on which the threads of a rank, those that carry its messages and those of its
// GPU take turns.

struct CoreBinding {
  int own = 0;        // cores that this process may run on
  int host = 0;       // cores that it might: those of the host, or of the container or job that it is in
  int processes = 1;  // of the job, on this host
};

// Of this process. `cgroups`: where the kernel shows which cores a group of processes has; `group`: the file that names
// this process's.
CoreBinding core_binding(int processes, const fs::path& cgroups = "/sys/fs/cgroup",
                         const fs::path& group = "/proc/self/cgroup");

// A warning with the way out, where a process has less than its share; else empty.
std::string binding_warning(const CoreBinding& binding, const Launch& launch);

}  // namespace witan
