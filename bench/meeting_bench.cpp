// The cost for N ranks to meet and form a job, as threads of this process that connect over loopback: all connect to
// rank 0 and get its table of addresses; they send rank 0 their engine and receive the common choice; and optionally
// each sends a message to so many others, which connect on the first one. Prints connections, number and bytes of
// handshake messages, the wall time until the slowest rank is ready, the processor time of rank 0's thread until it has
// met the others and of the process, and the time until all have left.
#include <fmt/core.h>
#include <sys/resource.h>

#include <atomic>
#include <ctime>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/process.h"
#include "witan/comm/processes/bootstrap.h"
#include "witan/comm/processes/links.h"
#include "witan/comm/processes/message_engine.h"

namespace witan {
namespace {

constexpr double kSeconds = 120;  // until a rank gives up
constexpr size_t kHandshakeBytes = 2 * sizeof(Greeting) + sizeof(Introduction) + sizeof(Answer);
constexpr uint64_t kChannel = 77;

double clock_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int free_port() {
  return local_end(listen_at({"127.0.0.1", 0})).port;
}

// The size of the table for eight ranks per host.
size_t table_bytes(int ranks) {
  RankTable table;
  for (int rank = 0; rank < ranks; ++rank)
    table.places.push_back(
        {fmt::format("node{:04}.cluster", rank / 8), fmt::format("10.0.{}.{}", rank / 2048, rank / 8), rank});
  return pack_table(table).size();
}

// Sends a message to the next `others` ranks, and receives one from those before.
void talk(Links& links, int others) {
  const int size = links.size();
  for (int step = 1; step <= others; ++step)
    links.send_control((links.rank() + step) % size, kChannel, Links::Control::call, {}, kSeconds);
  for (int step = 1; step <= others; ++step) {
    const int from = (links.rank() - step + size) % size;
    links.wait(
        [&](Links::View& view) {
          if (!view.has_control(from, kChannel, Links::Control::call)) return false;
          view.next_control(from, kChannel, Links::Control::call);
          return true;
        },
        [](Links::View&) { return ""; }, [](Links::View&) { return "a rank is late"; }, kSeconds);
  }
}

struct Times {
  double met = 0, talked = 0, left = 0;  // s, until the slowest rank is done
  double first = 0, all = 0;             // s of processor time
  int64_t connections = 0;
};

void raise_to(std::atomic<double>& most, double value) {
  for (double was = most.load(); was < value && !most.compare_exchange_weak(was, value);) continue;
}

Times measure(int ranks, int others) {
  const int port = free_port();
  Times times;
  std::atomic<double> met{0}, talked{0};
  std::atomic<int64_t> ends{0};
  std::latch there(ranks);
  std::vector<std::thread> threads;
  const double cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const Stopwatch watch;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Met own = meet_peers({rank, ranks, rank, {"127.0.0.1", port}, "secret"}, kSeconds);
      if (rank == 0) times.first = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
      raise_to(met, watch.seconds());
      Links links(std::move(own), kSeconds);
      choose_engine(links, CommEngine::sockets, kSeconds);
      talk(links, others);
      raise_to(talked, watch.seconds());
      there.arrive_and_wait();
      ends += links.connections();
    });
  for (std::thread& thread : threads) thread.join();
  times.left = watch.seconds();
  times.all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  times.met = met.load();
  times.talked = talked.load();
  times.connections = ends.load() / 2;
  return times;
}

void print(int ranks, int others) {
  const Times times = measure(ranks, others);
  const auto connections = static_cast<size_t>(times.connections), tables = static_cast<size_t>(ranks) - 1;
  fmt::print("{:>5} {:>6} {:>11} {:>9} {:>11} {:>8.3f} {:>8.3f} {:>8.3f} {:>12.3f} {:>10.3f}\n", ranks, others,
             connections, 4 * connections + tables, kHandshakeBytes * connections + table_bytes(ranks) * tables,
             times.met, times.talked, times.left, times.first, times.all);
}

}  // namespace
}  // namespace witan

int main() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  fmt::print("ranks others connections  messages       bytes    met s talked s   left s rank 0 CPU s  all CPU s\n");
  for (const int ranks : {64, 256, 1024}) witan::print(ranks, 0);
  for (const int ranks : {64, 256, 1024}) witan::print(ranks, 3);
  witan::print(64, 63);
}
