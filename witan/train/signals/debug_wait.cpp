#include "witan/train/signals/debug_wait.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cassert>
#include <chrono>
#include <thread>

#include "witan/base/error.h"
#include "witan/base/process.h"
#include "witan/comm/failure.h"
#include "witan/train/signals/signals.h"

namespace witan {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

// Suspends deadlines for the rank until it is destroyed.
class Waiting {
 public:
  Waiting(World& world, int rank, const fs::path& file, const std::string& text)
      : world_(world), rank_(rank), file_(file) {
    world_.hold()->wait_for_debugger(rank_, true);
    write_file_atomically(file_, text);
  }
  ~Waiting() {
    std::error_code ignored;
    fs::remove(file_, ignored);
    world_.hold()->wait_for_debugger(rank_, false);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  World& world_;
  const int rank_;
  const fs::path& file_;
};

}  // namespace

std::string how_to_attach(int rank, int world_size, const fs::path& file) {
  return fmt::format(
      "debug        rank {0} of {1} waits for a debugger: thread {2} of process {3} on {4}\n"
      "attach       gdb -p {3} -ex 'thread find {2}'   (set breakpoints, then `continue`)\n"
      "or resume    rm {5}\n",
      rank, world_size, this_thread(), ::getpid(), host_name(), file.string());
}

void wait_for_debugger(World& world, int rank, const fs::path& file, std::FILE* out) {
  assert(world.hold() != nullptr && world.hold()->may_hold(rank));
  allow_debugger();
  const std::string text = how_to_attach(rank, world.size(), file);
  const Waiting waiting(world, rank, file, text);
  std::fputs(text.c_str(), out);
  std::fflush(out);
  const pid_t thread = this_thread();
  while (tracer_of_thread(thread) == 0 && fs::exists(file) && !StopSignals::requested()) {
    if (world.failure(rank)->raised())
      throw AbortedError(cat("stopped while rank ", rank, " waited for a debugger, as another rank failed"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace witan
