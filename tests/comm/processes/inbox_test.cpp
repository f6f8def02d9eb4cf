// Frames of a rank, in pieces of any size: messages and data arrive as sent, and invalid frames are refused.
#include "witan/comm/processes/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace witan {
namespace {

using Event = Inbox::Event;

std::string frame(uint32_t kind, uint64_t channel, const std::string& payload = "", uint64_t more = 0) {
  const FrameHeader header{kind, 0, channel, payload.size() + more};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}
std::string control(Control kind, uint64_t channel, const std::string& payload) {
  return frame(static_cast<uint32_t>(kind), channel, payload);
}

// Whether all of these bytes are valid frames, if they arrive in pieces of this size.
bool hears(Inbox& inbox, const std::string& words, size_t at_once = 1 << 20, bool dropped = false) {
  Inbox::Bytes trash(kMostDataBytes);
  auto left = std::as_bytes(std::span(words));
  while (!left.empty()) {
    const auto room = inbox.room(trash);
    EXPECT_FALSE(room.empty());
    const auto piece = left.first(std::min({at_once, room.size(), left.size()}));
    std::ranges::copy(piece, room.begin());
    left = left.subspan(piece.size());
    if (inbox.advance(piece.size(), dropped) == Event::malformed) return false;
  }
  return true;
}
std::string text_of(const Inbox::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Inbox, ReadsFramesInPiecesOfAnySize) {
  for (const size_t at_once : {1, 5, 24, 1 << 20}) {
    Inbox inbox;
    std::string data(9, ' ');
    inbox.want(7, reinterpret_cast<std::byte*>(data.data()), 5);
    inbox.want(7, reinterpret_cast<std::byte*>(data.data()) + 5, 4);
    EXPECT_FALSE(inbox.arrived(7));
    EXPECT_TRUE(hears(inbox,
                      control(Control::call, 7, "one") + frame(kData, 7, "abc") + frame(kHeartbeat, 1) +
                          frame(kData, 7, "de") + control(Control::call, 7, "two") + control(Control::ready, 8, "") +
                          frame(kData, 7, "fghi"),
                      at_once));
    EXPECT_EQ(data, "abcdefghi");
    EXPECT_TRUE(inbox.arrived(7));
    EXPECT_EQ(text_of(inbox.first_control(7, Control::call)), "one");
    EXPECT_EQ(text_of(inbox.next_control(7, Control::call)), "one");
    EXPECT_EQ(text_of(inbox.next_control(7, Control::call)), "two");
    EXPECT_FALSE(inbox.has_control(7, Control::call));
    EXPECT_TRUE(inbox.has_control(8, Control::ready));
    EXPECT_FALSE(inbox.has_control(9, Control::ready));
    EXPECT_TRUE(hears(inbox, frame(kFailure, 0, "words"), at_once));
    EXPECT_EQ(inbox.header().kind, kFailure);
    EXPECT_EQ(text_of(inbox.payload()), "words");
    EXPECT_TRUE(hears(inbox, frame(kDepartures, 0, "who has left"), at_once));
    EXPECT_EQ(inbox.header().kind, kDepartures);
    EXPECT_EQ(text_of(inbox.payload()), "who has left");
  }
}

TEST(Inbox, RefusesInvalidFrames) {
  const auto refuses = [](const std::string& words) {
    Inbox inbox;
    return !hears(inbox, words);
  };
  EXPECT_TRUE(refuses(frame(kDepartures + 1, 0)));
  EXPECT_TRUE(refuses(std::string(24, '\xff')));
  EXPECT_TRUE(refuses(frame(0, 1, "", kMostControlBytes + 1)));
  EXPECT_TRUE(refuses(frame(kData, 1, "unwanted")));
  EXPECT_TRUE(refuses(frame(kFailure, 0, "", kMostFailureBytes + 1)));
  EXPECT_TRUE(refuses(frame(kDepartures, 0, "", kMostDeparturesBytes + 1)));
  EXPECT_TRUE(refuses(frame(kShutdown, 0, "x")));
  EXPECT_TRUE(refuses(frame(kHeartbeat, 0, "x")));
  std::string unused = frame(kHeartbeat, 0), flood, channels;
  unused[4] = 1;
  EXPECT_TRUE(refuses(unused));
  for (int i = 0; i < 4; ++i) flood += control(Control::offer, 9, "");
  EXPECT_FALSE(refuses(flood));
  EXPECT_TRUE(refuses(flood + control(Control::offer, 9, "")));
  for (uint64_t i = 0; i < 4096; ++i) channels += control(Control::call, i, "");
  EXPECT_FALSE(refuses(channels));
  EXPECT_TRUE(refuses(channels + control(Control::call, 4096, "")));
}

// More data than requested is refused before a byte of it is written.
TEST(Inbox, NeverWritesMoreThanRequested) {
  Inbox inbox;
  std::string data = "....|";
  inbox.want(3, reinterpret_cast<std::byte*>(data.data()), 4);
  EXPECT_FALSE(hears(inbox, frame(kData, 3, "abcde")));
  EXPECT_EQ(data, "....|");
}

// Announced data takes no memory before it arrives.
TEST(Inbox, AllocatesForALongMessageAsItArrives) {
  const std::string words(kMostControlBytes, 'x');
  for (const size_t at_once : {1000, 1 << 20}) {
    Inbox inbox;
    const std::string message = control(Control::answer, 5, words);
    EXPECT_TRUE(hears(inbox, message.substr(0, sizeof(FrameHeader)), at_once));
    EXPECT_LE(inbox.room({}).size(), size_t{1} << 16);
    EXPECT_TRUE(hears(inbox, message.substr(sizeof(FrameHeader)), at_once));
    EXPECT_EQ(text_of(inbox.next_control(5, Control::answer)), words);
  }
}

// A wait may end while data is arriving: the data is discarded, and later frames are read correctly.
TEST(Inbox, SkipsDiscardedData) {
  Inbox inbox;
  std::string data = "....";
  inbox.want(3, reinterpret_cast<std::byte*>(data.data()), 4);
  const std::string words = frame(kData, 3, "abcd");
  EXPECT_TRUE(hears(inbox, words.substr(0, 26)));
  inbox.drop(3);
  EXPECT_TRUE(hears(inbox, words.substr(26) + frame(kData, 3, "late") + control(Control::call, 3, "x"), 1 << 20, true));
  EXPECT_EQ(data, "ab..");
  EXPECT_TRUE(inbox.has_control(3, Control::call));
}

}  // namespace
}  // namespace witan
