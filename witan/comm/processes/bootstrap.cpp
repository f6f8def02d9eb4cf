#include "witan/comm/processes/bootstrap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr double kLongerSeconds = 5;  // others wait: rank 0 gives up first, and says who is missing

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
    : self_{launch.rank, launch.size, launch.secret, host_name(), 0},
      master_(launch.master),
      patience_(launch.rank == 0 ? seconds : seconds + kLongerSeconds),
      deadline_(deadline_in(patience_)) {
  if (launch.rank == 0) allow_descriptors(launch.size, 1);
  const std::string address = launch.secret.empty() ? master_.address : "";
  listener_ = listen_at({address, launch.rank == 0 ? master_.port : 0});
  launch.rank == 0 ? wait_for_all() : come_to_first(seconds);
}

void Meeting::wait_for_all() {
  try {
    receive_guests(listener_, self_, ranks_from(1, self_.size), deadline_, guests_);
  } catch (const CommError& error) {
    const std::string trouble = cat(error.what(), " (waited ", patience_, " s)");
    tell(guests_, {{}, trouble}, deadline_in(1));
    throw CommError(trouble);
  }
  table_ = make_table(self_, guests_);
  tell(guests_, table_, deadline_);
}

void Meeting::come_to_first(double seconds) {
  self_.port = local_end(listener_).port;
  guests_.push_back(find(master_, self_, 0, deadline_in(seconds), seconds));
  keep_alive(guests_[0].socket);
  table_ = hear(guests_[0].socket, self_.size, deadline_, patience_);
}

void Meeting::connect_to_others() {
  guests_.reserve(static_cast<size_t>(self_.size));  // they stay where they are
  const Socket* const first = &guests_[0].socket;    // it knows who is lost from now on
  for (int rank = 1; rank < self_.rank; ++rank) {
    const RankPlace& place = table_.places[static_cast<size_t>(rank)];
    const std::string& address = self_.secret.empty() ? master_.address : place.address;
    guests_.push_back(find({address, place.port}, self_, rank, deadline_, patience_, first));
  }
  receive_guests(listener_, self_, ranks_from(self_.rank + 1, self_.size), deadline_, guests_, first);
}

std::vector<Peer> Meeting::connect(int beside) {
  allow_descriptors(self_.size, beside);
  if (self_.rank != 0) connect_to_others();
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
