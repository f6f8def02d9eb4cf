#include "witan/comm/processes/inbox.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace witan {
namespace {

constexpr size_t kMostWaitingControls = 4;  // a rank is one call ahead of another at most
constexpr size_t kMostChannels = 4096;
constexpr size_t kMostPayloadRoom = size_t{1} << 16;  // bytes of a payload that have not come yet

size_t most_bytes(uint32_t kind) {
  if (kind < kControls) return kMostControlBytes;
  if (kind == kData) return kMostDataBytes;
  if (kind == kDepartures) return kMostDeparturesBytes;
  return kind == kFailure ? kMostFailureBytes : 0;
}

}  // namespace

const Inbox::Channel* Inbox::channel(uint64_t number) const {
  const auto found = channels_.find(number);
  return found == channels_.end() ? nullptr : &found->second;
}

void Inbox::want(uint64_t channel, std::byte* to, int64_t bytes) {
  if (bytes > 0) channels_[channel].targets.push_back({to, bytes});
}

void Inbox::drop(uint64_t channel) {
  if (const auto found = channels_.find(channel); found != channels_.end()) found->second.targets.clear();
}

bool Inbox::arrived(uint64_t number) const {
  const Channel* found = channel(number);
  return found == nullptr || found->targets.empty();
}

bool Inbox::has_control(uint64_t number, Control kind) const {
  const Channel* found = channel(number);
  return found != nullptr && !found->controls[static_cast<size_t>(kind)].empty();
}

bool Inbox::put_control(uint64_t number, Control kind, Bytes bytes) {
  if (channel(number) == nullptr && channels_.size() == kMostChannels) return false;
  auto& controls = channels_[number].controls[static_cast<size_t>(kind)];
  if (controls.size() == kMostWaitingControls) return false;
  controls.push_back(std::move(bytes));
  return true;
}

const Inbox::Bytes& Inbox::first_control(uint64_t number, Control kind) const {
  return channel(number)->controls[static_cast<size_t>(kind)].front();
}

Inbox::Bytes Inbox::next_control(uint64_t channel, Control kind) {
  auto& controls = channels_.at(channel).controls[static_cast<size_t>(kind)];
  Bytes control = std::move(controls.front());
  controls.pop_front();
  return control;
}

std::span<std::byte> Inbox::room(std::span<std::byte> trash) {
  if (header_bytes_ < sizeof header_) return std::as_writable_bytes(std::span(&header_, 1)).subspan(header_bytes_);
  if (header_.kind != kData) return payload_room();
  const auto& targets = channels_[header_.channel].targets;
  if (discards_ || targets.empty()) return trash.first(left_);
  return {targets.front().to, std::min(left_, static_cast<uint64_t>(targets.front().bytes))};
}

// A header alone makes no room for all that it promises.
std::span<std::byte> Inbox::payload_room() {
  const size_t got = header_.bytes - left_;
  if (payload_.size() == got) payload_.resize(std::min<size_t>(header_.bytes, got + kMostPayloadRoom));
  return std::span(payload_).subspan(got);
}

Inbox::Event Inbox::advance(size_t bytes, bool dropped) {
  if (header_bytes_ < sizeof header_) {
    header_bytes_ += bytes;
    if (header_bytes_ < sizeof header_) return Event::none;
    if (!begin_frame(dropped)) return Event::malformed;
  } else {
    left_ -= bytes;
    if (header_.kind == kData && !discards_) count(bytes);
  }
  if (left_ > 0) return Event::none;
  return end_frame() ? Event::frame : Event::malformed;
}

void Inbox::count(size_t bytes) {
  auto& targets = channels_[header_.channel].targets;
  if (targets.empty()) return;  // dropped meanwhile
  Target& target = targets.front();
  target.to += bytes;
  target.bytes -= static_cast<int64_t>(bytes);
  if (target.bytes == 0) targets.pop_front();
}

// Checks the bounds of every number before using it or allocating memory.
bool Inbox::begin_frame(bool dropped) {
  if (header_.kind > kDepartures || header_.unused != 0 || header_.bytes > most_bytes(header_.kind)) return false;
  const Channel* known = channel(header_.channel);
  if (header_.kind <= kData && known == nullptr && channels_.size() == kMostChannels) return false;
  left_ = header_.bytes;
  payload_.clear();
  if (header_.kind != kData) return true;
  discards_ =
      known == nullptr || known->targets.empty() || header_.bytes > static_cast<uint64_t>(known->targets.front().bytes);
  return !discards_ || dropped;
}

bool Inbox::end_frame() {
  header_bytes_ = 0;
  if (header_.kind >= kControls) return true;
  const bool kept = put_control(header_.channel, static_cast<Control>(header_.kind), std::move(payload_));
  payload_ = {};
  return kept;
}

namespace {

struct Entry {
  uint32_t rank = 0, unused = 0;
  uint64_t messages = 0;
};
static_assert(sizeof(Entry) == kDepartureBytes);

}  // namespace

std::vector<std::byte> pack_departures(std::span<const Departure> departures) {
  assert(departures.size() * sizeof(Entry) <= kMostDeparturesBytes);
  std::vector<std::byte> bytes(departures.size() * sizeof(Entry));
  for (size_t i = 0; i < departures.size(); ++i) {
    const Entry entry{static_cast<uint32_t>(departures[i].rank), 0, departures[i].messages};
    std::memcpy(bytes.data() + i * sizeof entry, &entry, sizeof entry);
  }
  return bytes;
}

std::optional<std::vector<Departure>> parse_departures(std::span<const std::byte> bytes, int ranks) {
  if (bytes.size() % sizeof(Entry) != 0) return std::nullopt;
  std::vector<Departure> departures;
  for (; !bytes.empty(); bytes = bytes.subspan(sizeof(Entry))) {
    Entry entry;
    std::memcpy(&entry, bytes.data(), sizeof entry);
    if (entry.rank >= static_cast<uint32_t>(ranks) || entry.unused != 0) return std::nullopt;
    departures.push_back({static_cast<int>(entry.rank), entry.messages});
  }
  return departures;
}

}  // namespace witan
