// Runs a test's body on N ranks that are processes of this machine.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/comes_true.h"
#include "support/free_port.h"
#include "support/rank.h"
#include "support/temp_folder.h"
#include "support/thread_world.h"
#include "witan/base/error.h"
#include "witan/comm/processes/process_world.h"

namespace witan::testing {

// By the engine that WITAN_COMM_ENGINE names: tests/CMakeLists.txt runs what uses this with several.
inline Launch launch_of(int rank, int size, int port, const std::string& secret = "test") {
  const char* engine = std::getenv(kEngineVariable);
  return {rank, size, rank, {"127.0.0.1", port}, secret, engine_named(engine == nullptr ? "auto" : engine)};
}

// Of a job whose messages all travel over its own connections, where tests play a rank by hand.
inline Launch launch_by_sockets(int rank, int size, int port) {
  Launch launch = launch_of(rank, size, port);
  launch.engine = CommEngine::sockets;
  return launch;
}

// How a process ended. A test that fails within it ends it with code 99.
struct Ended {
  bool killed = false;
  int code = -1;
  std::string said;    // what its body returned, or its error's message
  double seconds = 0;  // from the start of all
};

constexpr double kSoon = 5;  // s: within it the others end when one is lost

inline void expect_whole(const std::vector<Ended>& ended) {
  for (size_t process = 0; process < ended.size(); ++process)
    EXPECT_EQ(ended[process].code, 0) << "process " << process << ": " << ended[process].said;
}

inline std::string read_all(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Runs body(rank) in processes of their own, forked from this one, which must have no other threads.
inline std::vector<Ended> in_processes(int count, const std::function<std::string(int rank)>& body) {
  const test::TempFolder folder;
  const auto start = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      std::string said;
      try {
        said = body(rank);
      } catch (const Error& error) {
        code = static_cast<int>(error.code());
        said = error.what();
      } catch (const std::exception& error) {
        code = 1;
        said = error.what();
      }
      std::ofstream(folder / std::to_string(rank), std::ios::binary) << said;
      ::_exit(code == 0 && ::testing::Test::HasFailure() ? 99 : code);
    }
    children.push_back(child);
  }
  std::vector<Ended> ended(children.size());
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t child = ::wait(&status);
    const auto rank = static_cast<size_t>(std::find(children.begin(), children.end(), child) - children.begin());
    if (rank == children.size()) continue;
    ended[rank] = {WIFSIGNALED(status) != 0, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                   read_all(folder / std::to_string(rank)),
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  }
  return ended;
}

// What a process waits for that another one does; made before they are forked.
class ProcessEvent {
 public:
  ProcessEvent() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    heard_ = Socket(ends[0]);
    says_ = Socket(ends[1]);
  }
  void set() const { EXPECT_EQ(::write(says_.fd(), "1", 1), 1); }
  bool wait(double seconds = 10) const { return wait_readable(heard_, seconds); }

 private:
  Socket heard_, says_;
};

// A connection by hand to rank 0, which may not listen yet.
inline Socket connected_to_zero(int port) {
  std::optional<Socket> socket;
  std::string why;
  test::comes_true([&] {
    socket = connect_to({"127.0.0.1", port}, deadline_in(5), why);
    return socket.has_value();
  });
  return std::move(socket.value());
}

// Stops this process, as ^Z does; another one, of its own, continues it after so many seconds, if ever.
inline void stop_for(double seconds) {
  const pid_t stopped = ::getpid();
  if (::fork() == 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    ::kill(stopped, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

struct ProcessRank : Rank {
  explicit ProcessRank(ProcessWorld& of) : Rank(1, int64_t{1} << 28), world(of), rank(of.first_rank()) {}

  std::unique_ptr<HostGroup> everyone(const std::string& axis = "data") {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return world.group(rank, ranks, axis);
  }

  ProcessWorld& world;
  const int rank;
};

// The same with a world of all of them.
inline std::vector<Ended> on_processes(int count, const std::function<std::string(ProcessRank&)>& body,
                                       const ProcessWorldOptions& options = {20, 20}) {
  const int port = free_port();
  return in_processes(count, [&](int index) {
    ProcessWorld world(launch_of(index, count, port), options);
    std::string said;
    world.run([&](int) {
      ProcessRank rank(world);
      said = body(rank);
    });
    return said;
  });
}

}  // namespace witan::testing
