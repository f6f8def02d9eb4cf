// What it takes for N ranks to meet, all of them threads of this process that connect over the loopback: the first
// step, in which all come to rank 0 and get its table of addresses, and the second, in which each connects to each.
// Prints connections, messages and bytes, the wall time of the slowest rank, the processor time of rank 0's thread in
// the first step, and that of all ranks. Descriptors bound the second: N ranks of one process take N (N - 1) of them.
#include <fmt/core.h>
#include <sys/resource.h>

#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/stopwatch.h"
#include "witan/comm/processes/bootstrap.h"

namespace witan {
namespace {

constexpr double kSeconds = 120;  // until a rank gives up
constexpr size_t kHandshakeBytes = 2 * sizeof(Greeting) + sizeof(Introduction) + sizeof(Answer);

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int free_port() {
  return local_end(listen_at({"127.0.0.1", 0})).port;
}

// Of ranks that are eight to a host.
size_t table_bytes(int ranks) {
  RankTable table;
  for (int rank = 0; rank < ranks; ++rank)
    table.places.push_back(
        {fmt::format("node{:04}.cluster", rank / 8), fmt::format("10.0.{}.{}", rank / 2048, rank / 8), rank});
  return pack_table(table).size();
}

struct Times {
  double wall = 0, first = 0, all = 0;  // s
};

// `mesh`: both steps.
Times meet(int ranks, bool mesh) {
  const int port = free_port();
  std::vector<std::thread> threads;
  std::vector<double> used(static_cast<size_t>(ranks));
  std::vector<std::vector<Peer>> peers(used.size());  // connections that end early are ranks that are lost
  const Stopwatch watch;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Meeting meeting({rank, ranks, rank, {"127.0.0.1", port}, "secret"}, kSeconds);
      if (mesh) peers[static_cast<size_t>(rank)] = meeting.connect();
      used[static_cast<size_t>(rank)] = thread_seconds();
    });
  for (std::thread& thread : threads) thread.join();
  Times times{watch.seconds(), used[0], 0};
  for (const double seconds : used) times.all += seconds;
  return times;
}

void print(int ranks, bool mesh) {
  const size_t n = static_cast<size_t>(ranks), connections = mesh ? n * (n - 1) / 2 : n - 1;
  const size_t reports = mesh ? 2 * (n - 1) : 0;  // that a rank has connected to all, and that all have
  const size_t messages = 4 * connections + n - 1 + reports;
  const size_t bytes = kHandshakeBytes * connections + table_bytes(ranks) * (n - 1) + pack_table({}).size() * reports;
  const Times times = meet(ranks, mesh);
  fmt::print("{:>5} {:<6} {:>11} {:>9} {:>11} {:>9.3f} {:>12.3f} {:>10.3f}\n", ranks, mesh ? "both" : "first",
             connections, messages, bytes, times.wall, times.first, times.all);
}

}  // namespace
}  // namespace witan

int main() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  fmt::print("ranks steps  connections  messages       bytes    wall s  rank 0 CPU s  all CPU s\n");
  for (const int ranks : {64, 256, 1024}) witan::print(ranks, false);
  for (const int ranks : {16, 32, 64}) witan::print(ranks, true);
}
