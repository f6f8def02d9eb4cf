// Departures: how ranks of links.h leave, and learn that others have left.
#include <algorithm>

#include "witan/comm/processes/links.h"

namespace witan {

void Links::send_departures(int to, std::span<const Departure> departures, Deadline deadline) {
  constexpr size_t kMost = kMostDeparturesBytes / kDepartureBytes;
  for (; !departures.empty(); departures = departures.subspan(std::min(kMost, departures.size()))) {
    const auto bytes = pack_departures(departures.first(std::min(kMost, departures.size())));
    tell_one(to, {kDepartures, 0, 0, bytes.size()}, bytes, deadline);
  }
}

void Links::tell_messages() {
  if (rank() == 0) return;
  std::vector<Departure> sent;
  {
    const MutexLock lock(mutex_);
    for (int to = 1; engine_ != nullptr && to < size(); ++to)
      if (to != rank() && engine_->sent(to) > 0) sent.push_back({to, engine_->sent(to)});
  }
  send_departures(0, sent, deadline_in(kTellSeconds));
}

void Links::tell_departures(const std::vector<int>& departed) {
  const Deadline deadline = deadline_in(kTellSeconds);
  for (int to = 1; to < size(); ++to) {
    std::vector<Departure> news;
    {
      const MutexLock lock(mutex_);
      if (incoming(to).ended || incoming(to).shut_down) continue;
      for (const int from : departed) {
        const auto& sent = sent_by_[from];
        const auto found = sent.find(to);
        news.push_back({from, found == sent.end() ? 0 : found->second});
      }
    }
    send_departures(to, news, deadline);
  }
}

// A connected rank announces its leaving itself, after everything else that it sent.
bool Links::on_peer_left(int rank, const Bytes& words) {
  const auto departures = parse_departures(words, size());
  if (!departures || (rank != 0 && this->rank() != 0)) return false;
  for (const auto& [other, messages] : *departures) {
    if (this->rank() == 0) {
      sent_by_[rank][other] = messages;
    } else if (other != this->rank() && !connected(other)) {
      incoming(other).shut_down = true;
      incoming(other).engine_messages = messages;
    }
  }
  return true;
}

// One that does not end is lost once it is silent for too long. What an engine still carries moves meanwhile.
void Links::await_departures() {
  linger(kForEver, [this] {
    mutex_.assert_held();
    return all_left();
  });
}

}  // namespace witan
