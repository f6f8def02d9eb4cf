// Parses the frames that one rank sends to this process while their bytes arrive, without sockets, locks or clocks.
//
// A frame is a header of 24 bytes (kind, 0, channel, bytes; little-endian) and that many bytes of payload; the size is
// checked against the limit of its kind before anything is allocated or read. A control message waits in its channel
// until it is read; data goes straight into the memory given to want(). Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace witan {

enum class Control : uint32_t { call, ready, offer, answer };
inline constexpr uint32_t kControls = 4;
// Control messages have their own numbers.
enum FrameKind : uint32_t { kData = kControls, kFailure, kShutdown, kHeartbeat, kDepartures };
inline constexpr size_t kMostControlBytes = size_t{1} << 20;
inline constexpr size_t kMostDataBytes = size_t{1} << 20;  // of a frame: other threads' frames come in between
inline constexpr size_t kMostFailureBytes = 4096;
inline constexpr size_t kDepartureBytes = 16, kMostDeparturesBytes = kDepartureBytes * 1024;

struct FrameHeader {
  uint32_t kind = 0, unused = 0;
  uint64_t channel = 0, bytes = 0;
};
static_assert(sizeof(FrameHeader) == 24);

class Inbox {
 public:
  using Bytes = std::vector<std::byte>;
  enum class Event : uint8_t { none, frame, malformed };

  // The next `bytes` of data on the channel, after those of earlier calls, go to `to`, which must stay alive until they
  // have arrived or are dropped.
  void want(uint64_t channel, std::byte* to, int64_t bytes);
  void drop(uint64_t channel);
  bool arrived(uint64_t channel) const;  // all that was wanted

  bool has_control(uint64_t channel, Control kind) const;
  // One that came another way than by room(); false where it breaks the rules, and is not kept.
  [[nodiscard]] bool put_control(uint64_t channel, Control kind, Bytes bytes);
  const Bytes& first_control(uint64_t channel, Control kind) const;  // where there is one
  Bytes next_control(uint64_t channel, Control kind);                // the same, and it is gone

  // The buffer for the next bytes, never empty. `trash`, of kMostDataBytes, takes data that was dropped.
  std::span<std::byte> room(std::span<std::byte> trash);
  // The first `bytes` of room() have come. A frame, when they end one; malformed, when they break the rules: then
  // nothing more may be read. `dropped`: data that is no longer awaited may still arrive.
  Event advance(size_t bytes, bool dropped);
  // The frame that has just ended; the payload of a failure or of departures.
  const FrameHeader& header() const { return header_; }
  const Bytes& payload() const { return payload_; }

 private:
  struct Target {
    std::byte* to;
    int64_t bytes;  // to come
  };
  struct Channel {
    std::array<std::deque<Bytes>, kControls> controls;
    std::deque<Target> targets;
  };

  const Channel* channel(uint64_t number) const;
  std::span<std::byte> payload_room();
  bool begin_frame(bool dropped);
  bool end_frame();
  void count(size_t bytes);

  FrameHeader header_;       // being read
  size_t header_bytes_ = 0;  // of it, read
  Bytes payload_;            // of what is no data
  uint64_t left_ = 0;        // of the frame, to be read
  bool discards_ = false;    // the data being read is discarded
  std::map<uint64_t, Channel> channels_;
};

// A notice that a rank has left the job, which ranks pass on through rank 0.
//
// A rank that leaves tells rank 0 how many messages it has sent to each other rank by an engine (message_engine.h).
// Rank 0 then tells each of the others which ranks have left, and how many messages were sent to it. A receiver that
// still lacks messages waits for them before it considers the rank gone. From rank 0, `rank` has left; to rank 0,
// `rank` is the receiver of the messages.
struct Departure {
  int rank = 0;
  uint64_t messages = 0;
};

// 16 bytes each: the rank, 0, the messages; little-endian. At most as many as a frame holds (kMostDeparturesBytes).
std::vector<std::byte> pack_departures(std::span<const Departure> departures);
// Nothing for bytes that are no such list for a job of `ranks` ranks.
std::optional<std::vector<Departure>> parse_departures(std::span<const std::byte> bytes, int ranks);

}  // namespace witan
