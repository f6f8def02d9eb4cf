// Runs a test's body on N ranks that are processes of this machine.
#pragma once

#include <gtest/gtest.h>
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

// Uses the engine that WITAN_COMM_ENGINE names; tests/CMakeLists.txt runs these tests with several.
inline Launch launch_of(int rank, int size, int port, const std::string& secret = "test") {
  const char* engine = std::getenv(kEngineVariable);
  return {rank, size, rank, {"127.0.0.1", port}, secret, engine_named(engine == nullptr ? "auto" : engine)};
}

// A job whose messages all use its own connections, for tests that act as a rank by hand.
inline Launch launch_by_sockets(int rank, int size, int port) {
  Launch launch = launch_of(rank, size, port);
  launch.engine = CommEngine::sockets;
  return launch;
}

// The end of a process.
struct Ended {
  bool killed = false;
  int code = -1;         // 99 if an expectation failed although its body returned
  std::string said;      // the result of its body, or its error's message
  double seconds = 0;    // since the processes were started
  std::string failures;  // messages of its failed expectations, however it ended
};

constexpr double kSoon = 5;  // s: within this time the others end after losing a rank

inline void expect_whole(const std::vector<Ended>& ended) {
  for (size_t process = 0; process < ended.size(); ++process)
    EXPECT_EQ(ended[process].code, 0) << "process " << process << ": " << ended[process].said;
}

inline std::string read_all(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Writes each failed expectation of this process to a file at once, since the process may be about to throw, to exit or
// to be killed.
class FailureWriter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailureWriter(std::filesystem::path file) : file_(std::move(file)) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* source = result.file_name();
    std::ofstream(file_, std::ios::binary | std::ios::app)
        << (source == nullptr ? "" : source) << ":" << result.line_number() << ": " << result.message() << "\n";
  }

 private:
  std::filesystem::path file_;
};

// The files in which process `index` leaves what its body returned, and its failed expectations.
inline std::filesystem::path words_file(const std::filesystem::path& folder, int index) {
  return folder / std::to_string(index);
}
inline std::filesystem::path failures_file(const std::filesystem::path& folder, int index) {
  return folder / cat("failures-", index);
}

// Ends this process, the `index`-th that a test has started, as the body ends: with the code of its error, or with 99
// after a failed expectation.
[[noreturn]] inline void end_as(int index, const std::filesystem::path& folder,
                                const std::function<std::string()>& body) {
  ::testing::UnitTest::GetInstance()->listeners().Append(new FailureWriter(failures_file(folder, index)));
  int code = 0;
  std::string said;
  try {
    said = body();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    said = error.what();
  } catch (const std::exception& error) {
    code = 1;
    said = error.what();
  }
  std::ofstream(words_file(folder, index), std::ios::binary) << said;
  std::fflush(nullptr);
  ::_exit(code == 0 && std::filesystem::exists(failures_file(folder, index)) ? 99 : code);
}

// Fails the test for each process in which an expectation failed.
inline void report_failures(const std::vector<Ended>& ended) {
  for (size_t process = 0; process < ended.size(); ++process)
    if (!ended[process].failures.empty()) ADD_FAILURE() << "in process " << process << ":\n" << ended[process].failures;
}

// As in_processes(), but leaves it to the caller to look at failed expectations.
inline std::vector<Ended> run_processes(int count, const std::function<std::string(int rank)>& body) {
  const test::TempFolder folder;
  const auto start = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  std::fflush(nullptr);  // children flush what they have inherited, too
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) end_as(rank, folder.path(), [&] { return body(rank); });
    children.push_back(child);
  }
  std::vector<Ended> ended(children.size());
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t child = ::wait(&status);
    const auto rank = static_cast<size_t>(std::find(children.begin(), children.end(), child) - children.begin());
    if (rank == children.size()) continue;
    const int index = static_cast<int>(rank);
    ended[rank] = {WIFSIGNALED(status) != 0, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                   read_all(words_file(folder.path(), index)),
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                   read_all(failures_file(folder.path(), index))};
  }
  return ended;
}

// Runs body(rank) in processes of their own, forked from this one, which must have no other threads. An expectation
// that fails in one of them fails the test, whether the process then returns, throws, exits or is killed.
inline std::vector<Ended> in_processes(int count, const std::function<std::string(int rank)>& body) {
  std::vector<Ended> ended = run_processes(count, body);
  report_failures(ended);
  return ended;
}

// An event that one process sets and another waits for. It is made before they are forked.
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

// A connection by hand to rank 0, which may not be listening yet.
inline Socket connected_to_zero(int port) {
  std::optional<Socket> socket;
  std::string why;
  test::comes_true([&] {
    socket = connect_to({"127.0.0.1", port}, deadline_in(5), why);
    return socket.has_value();
  });
  return std::move(socket.value());
}

// Stops this process, as ^Z does; a helper process continues it after this many seconds, if given.
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

// Runs a world of all ranks on these processes.
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
