#include "witan/comm/processes/bootstrap.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <thread>

#include "witan/base/error.h"
#include "witan/comm/processes/process_failure.h"
#include "witan/comm/rank_list.h"

namespace witan {
namespace {

// Others wait longer for rank 0, which gives up first and says who is missing; and rank 0 longer for what they say of
// each other in the second step.
constexpr double kLongerSeconds = 4, kReportSeconds = 1;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// For the connections of so many ranks of this process, each to all others, and to everybody who is heard before that
// is known.
void allow_descriptors(int size, int beside) {
  constexpr rlim_t kOthers = 256;
  const rlim_t needed = static_cast<rlim_t>(beside) * (static_cast<rlim_t>(size) * 2 + kMostStrangers) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  require<ConfigError>(limit.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0, size, " ranks need ",
                       needed, " open files in each process, but the limit is ", limit.rlim_max,
                       ": raise it (ulimit -Hn)");
}

std::set<int> ranks_from(int first, int size) {
  std::set<int> ranks;
  for (int rank = first; rank < size; ++rank) ranks.insert(rank);
  return ranks;
}

// Connects to a rank that may not be there yet.
Guest find(const Endpoint& at, const Member& self, int rank, Deadline deadline, double seconds,
           const Socket* lifeline = nullptr) {
  constexpr double kTrySeconds = 2;
  std::string why = "it did not answer";
  auto pause = std::chrono::milliseconds(5);
  const auto who = [&] {
    return cat("rank ", self.rank, " on ", self.host, " could not connect to rank ", rank, " at ", at.address, ":",
               at.port);
  };
  while (std::chrono::steady_clock::now() < deadline) {
    require<CommError>(lifeline == nullptr || !hung_up(*lifeline), who(), ": ", why, "; rank 0 ended meanwhile");
    auto socket = connect_to(at, std::min(deadline, deadline_in(kTrySeconds)), why);
    if (socket)
      if (auto guest = introduce(std::move(*socket), at, self, rank, deadline, why, lifeline)) return std::move(*guest);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
  throw CommError(cat(who(), " within ", seconds, " s: ", why));
}

// Rank 0's table. Ranks of its own host may have come over the loopback, where others cannot find them: they are where
// rank 0 is.
RankTable make_table(const Member& self, const std::vector<Guest>& guests) {
  RankTable table{std::vector<RankPlace>(static_cast<size_t>(self.size)), ""};
  table.places[0].host = self.host;
  std::string own;
  for (const Guest& guest : guests)
    if (!is_loopback(remote_end(guest.socket).address)) own = local_end(guest.socket).address;
  for (const Guest& guest : guests) {
    std::string address = remote_end(guest.socket).address;
    if (is_loopback(address) && !own.empty()) address = own;
    table.places[static_cast<size_t>(guest.rank)] = {guest.host, address, guest.port};
  }
  return table;
}

void tell(const std::vector<Guest>& guests, const RankTable& table, Deadline deadline) {
  const std::vector<std::byte> bytes = pack_table(table);
  for (const Guest& guest : guests) send_all(guest.socket, bytes, deadline);  // who is gone by now is found out later
}

RankTable hear(const Socket& from, int size, Deadline deadline, double seconds) {
  RankTableReader reader(size);
  for (auto room = reader.room(); !room.empty(); room = reader.room()) {
    const Transfer transfer = recv_all(from, room, deadline);
    require<CommError>(transfer != Transfer::closed, "rank 0 ended before all ranks had connected");
    require<CommError>(transfer != Transfer::late, "rank 0 did not send the addresses of the other ranks within ",
                       seconds, " s");
    reader.advance(room.size());
  }
  require<CommError>(reader.table().trouble.empty(), reader.table().trouble);
  return reader.table();
}

}  // namespace

Meeting::Meeting(const Launch& launch, double seconds)
    : self_{launch.rank, launch.size, launch.secret, host_name(), 0}, master_(launch.master), seconds_(seconds) {
  if (launch.rank == 0) allow_descriptors(launch.size, 1);
  const std::string address = launch.secret.empty() ? master_.address : "";
  listener_ = listen_at({address, launch.rank == 0 ? master_.port : 0});
  launch.rank == 0 ? wait_for_all() : come_to_first();
}

void Meeting::wait_for_all() {
  const Deadline deadline = deadline_in(seconds_);
  try {
    receive_guests(listener_, self_, ranks_from(1, self_.size), deadline, guests_);
  } catch (const CommError& error) {
    const bool lost = dynamic_cast<const LostError*>(&error) != nullptr;
    const std::string trouble = lost ? error.what() : cat(error.what(), " (waited ", seconds_, " s)");
    tell(guests_, {{}, trouble}, deadline_in(1));
    throw CommError(trouble);
  }
  table_ = make_table(self_, guests_);
  tell(guests_, table_, deadline);
}

void Meeting::come_to_first() {
  const double patience = seconds_ + kLongerSeconds;
  const Deadline deadline = deadline_in(patience);
  self_.port = local_end(listener_).port;
  guests_.push_back(find(master_, self_, 0, deadline_in(seconds_), seconds_));
  keep_alive(guests_[0].socket);
  table_ = hear(guests_[0].socket, self_.size, deadline, patience);
}

void Meeting::connect_to_others() {
  const Deadline deadline = deadline_in(seconds_);
  guests_.reserve(static_cast<size_t>(self_.size));  // they stay where they are
  const Socket& first = guests_[0].socket;
  try {
    for (int rank = 1; rank < self_.rank; ++rank) {
      const RankPlace& place = table_.places[static_cast<size_t>(rank)];
      const std::string& address = self_.secret.empty() ? master_.address : place.address;
      guests_.push_back(find({address, place.port}, self_, rank, deadline, seconds_, &first));
    }
    receive_guests(listener_, self_, ranks_from(self_.rank + 1, self_.size), deadline, guests_, &first);
  } catch (const CommError& error) {
    send_all(first, pack_table({{}, error.what()}), deadline_in(1));
    throw;
  }
  const double patience = seconds_ + kLongerSeconds;
  send_all(first, pack_table({}), deadline);
  hear(first, 0, deadline_in(patience), patience);
}

std::string Meeting::find_trouble() {
  constexpr int kMostMilliseconds = 200;
  const Deadline deadline = deadline_in(seconds_ + kReportSeconds);
  std::vector<RankTableReader> reports(guests_.size(), RankTableReader(0));
  std::vector<pollfd> fds;
  for (const Guest& guest : guests_) fds.push_back({guest.socket.fd(), POLLIN, 0});
  for (size_t left = fds.size(); left > 0;) {
    ::poll(fds.data(), fds.size(), kMostMilliseconds);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const auto room = reports[i].room();
      const ssize_t got = ::recv(fds[i].fd, room.data(), room.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) return cat("rank ", guests_[i].rank, " on ", guests_[i].host, " is lost: its connection ended");
      reports[i].advance(static_cast<size_t>(got));
      if (!reports[i].room().empty()) continue;
      if (!reports[i].table().trouble.empty()) return reports[i].table().trouble;
      fds[i].fd = -1;
      --left;
    }
    std::vector<int> missing;
    for (size_t i = 0; i < fds.size(); ++i)
      if (fds[i].fd >= 0) missing.push_back(guests_[i].rank);
    if (!missing.empty() && seconds_since(deadline) >= 0)
      return cat(rank_list(missing), " of ", self_.size, " did not connect to all others within ",
                 seconds_ + kReportSeconds, " s");
  }
  return "";
}

void Meeting::hear_from_all() {
  const std::string trouble = find_trouble();
  tell(guests_, {{}, trouble}, deadline_in(seconds_));
  require<CommError>(trouble.empty(), trouble);
}

std::vector<Peer> Meeting::connect(int beside) {
  allow_descriptors(self_.size, beside);
  self_.rank == 0 ? hear_from_all() : connect_to_others();
  std::vector<Peer> peers(static_cast<size_t>(self_.size));
  for (Guest& guest : guests_) {
    keep_alive(guest.socket);
    peers[static_cast<size_t>(guest.rank)].socket = std::move(guest.socket);
  }
  for (size_t rank = 0; rank < peers.size(); ++rank) peers[rank].host = table_.places[rank].host;
  return peers;
}

std::vector<Peer> meet_peers(const Launch& launch, double seconds, int beside) {
  return Meeting(launch, seconds).connect(beside);
}

}  // namespace witan
