// The handshake of two ranks, with an attacker between them who reads and changes it.
#include "witan/comm/processes/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <future>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/comm/processes/pending_connections.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

const Member kZero{0, 2, "secret", "here", 0}, kOne{1, 2, "secret", "there", 1234};

std::string received(const Socket& from, size_t bytes) {
  std::string text(bytes, '\0');
  EXPECT_EQ(recv_all(from, std::as_writable_bytes(std::span(text)), deadline_in(5)), Transfer::done);
  return text;
}
void sent(const Socket& to, const std::string& text) {
  EXPECT_EQ(send_all(to, std::as_bytes(std::span(text)), deadline_in(5)), Transfer::done);
}

constexpr double kPatience = 120;  // s, on a busy machine: some tests make hundreds of connections

// Rank 0, which waits for rank 1 on its own thread.
class Accepting {
 public:
  Socket connect() const {
    std::string why;
    auto socket = connect_to({"127.0.0.1", local_end(listener_).port}, deadline_in(5), why);
    EXPECT_TRUE(socket) << why;
    return std::move(*socket);
  }
  std::vector<ConnectedPeer> peers() {
    accepted_.get();
    return std::move(peers_);
  }

 private:
  const Socket listener_ = listen_at({"127.0.0.1", 0});
  std::vector<ConnectedPeer> peers_;
  std::future<void> accepted_ =
      std::async(std::launch::async, [this] { accept_peers(listener_, kZero, {1}, deadline_in(kPatience), peers_); });
};

// Rank 1, which introduces itself on its own thread to the peer at the other end.
class Introducing {
 public:
  Introducing() {
    int ends[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    other = Socket(ends[1]);
    peer_ = std::async(std::launch::async, [own = Socket(ends[0])]() mutable {
      std::string why;
      return introduce(std::move(own), {"127.0.0.1", 1}, kOne, 0, deadline_in(5), why);
    });
  }
  std::optional<ConnectedPeer> peer() { return peer_.get(); }

  Socket other;

 private:
  std::future<std::optional<ConnectedPeer>> peer_;
};

// All bytes that the two exchange.
struct Heard {
  std::string connecting, accepting, introduction, answer;
};
using Change = std::function<void(std::string&)>;

Heard meet(Accepting& zero, Introducing& one, const Change& introduction = {}, const Change& answer = {}) {
  const Socket to_zero = zero.connect();
  Heard heard;
  sent(to_zero, heard.connecting = received(one.other, sizeof(Greeting)));
  sent(one.other, heard.accepting = received(to_zero, sizeof(Greeting)));
  heard.introduction = received(one.other, sizeof(Introduction));
  if (introduction) introduction(heard.introduction);
  sent(to_zero, heard.introduction);
  heard.answer = received(to_zero, sizeof(Answer));
  if (answer) answer(heard.answer);
  sent(one.other, heard.answer);
  return heard;
}

Change flipped(size_t byte) {
  return [byte](std::string& text) { text[byte] ^= 1; };
}

TEST(Handshake, Succeeds) {
  Accepting zero;
  Introducing one;
  meet(zero, one);
  EXPECT_EQ(one.peer()->rank, 0);
  const std::vector<ConnectedPeer> peers = zero.peers();
  ASSERT_EQ(peers.size(), 1u);
  EXPECT_EQ(peers[0].rank, 1);
  EXPECT_EQ(peers[0].host, "there");
  EXPECT_EQ(peers[0].port, 1234);
}

// The proof covers a rank's address, which the other ranks trust.
TEST(Handshake, RefusesAModifiedIntroduction) {
  Accepting zero;
  for (size_t byte = 0; byte < sizeof(Introduction); ++byte) {
    Introducing one;
    meet(zero, one, flipped(byte));
    EXPECT_THAT(test::message_of<CommError>([&] { one.peer(); }), HasSubstr("its WITAN_JOB_SECRET differs"));
    ASSERT_FALSE(HasFailure()) << "byte " << byte;
  }
  Introducing one;
  meet(zero, one);
  EXPECT_TRUE(one.peer());
  EXPECT_EQ(zero.peers().size(), 1u);
}

TEST(Handshake, RefusesAModifiedAnswer) {
  for (size_t byte = 0; byte < sizeof(Answer); ++byte) {
    Accepting zero;
    Introducing one;
    meet(zero, one, {}, flipped(byte));
    EXPECT_THAT(test::message_of<CommError>([&] { one.peer(); }), HasSubstr("is not rank 0 of this job"));
    ASSERT_FALSE(HasFailure()) << "byte " << byte;
  }
}

TEST(Handshake, RequiresTheSecret) {
  Introducing one;
  const Greeting greeting;
  Answer answer;
  answer.size = 2;
  received(one.other, sizeof(Greeting));
  sent(one.other, {reinterpret_cast<const char*>(&greeting), sizeof greeting});
  received(one.other, sizeof(Introduction));
  sent(one.other, {reinterpret_cast<const char*>(&answer), sizeof answer});
  EXPECT_THAT(test::message_of<CommError>([&] { one.peer(); }), HasSubstr("it does not know WITAN_JOB_SECRET"));
}

// Each side proves that it is present now: a recorded handshake cannot be replayed.
TEST(Handshake, RefusesReplays) {
  Heard heard;
  {
    Accepting zero;
    Introducing one;
    heard = meet(zero, one);
    EXPECT_TRUE(one.peer());
  }
  Accepting zero;
  {
    const Socket to_zero = zero.connect();
    sent(to_zero, heard.connecting);
    received(to_zero, sizeof(Greeting));
    sent(to_zero, heard.introduction);
    const std::string answer = received(to_zero, sizeof(Answer));
    Verdict verdict{};
    std::memcpy(&verdict, answer.data() + offsetof(Answer, verdict), sizeof verdict);
    EXPECT_EQ(verdict, Verdict::another_secret);
  }
  {
    Introducing one;
    received(one.other, sizeof(Greeting));
    sent(one.other, heard.accepting);
    received(one.other, sizeof(Introduction));
    sent(one.other, heard.answer);
    EXPECT_THAT(test::message_of<CommError>([&] { one.peer(); }), HasSubstr("it does not know WITAN_JOB_SECRET"));
  }
  Introducing one;
  meet(zero, one);
  EXPECT_TRUE(one.peer());
}

// The two ends separately, with an intermediary that carries their messages.
Greeting numbered(uint8_t number) {
  Greeting greeting;
  greeting.nonce.fill(number);
  return greeting;
}

using Words = std::vector<std::byte>;

// What the end does after the last of these bytes, which come so many at a time.
template <class End>
HandshakeStep hears(End& end, std::span<const std::byte> words, size_t at_once = 1000) {
  HandshakeStep step;
  while (!words.empty() && step.state == HandshakeStep::State::waits) {
    const size_t bytes = std::min({at_once, words.size(), end.room().size()});
    std::ranges::copy(words.first(bytes), end.room().begin());
    words = words.subspan(bytes);
    step = end.advance(bytes);
  }
  return step;
}

// One byte at a time, as a slow network may bring them, and with room for no more than is expected.
TEST(Handshake, MayTrickle) {
  Roster roster{{1}, {}};
  AcceptingEnd zero(kZero, roster, numbered(1));
  ConnectingEnd one(kOne, 0, numbered(2));
  const Words greeting = hears(zero, one.greeting(), 1).send;
  EXPECT_EQ(greeting.size(), sizeof(Greeting));
  const Words introduction = hears(one, greeting, 1).send;
  EXPECT_EQ(introduction.size(), sizeof(Introduction));
  EXPECT_EQ(zero.room().size(), sizeof(Introduction));
  const HandshakeStep last = hears(zero, introduction, 1);
  EXPECT_EQ(last.state, HandshakeStep::State::done);
  EXPECT_TRUE(zero.room().empty());
  EXPECT_EQ(hears(one, last.send, 1).state, HandshakeStep::State::done);
  EXPECT_TRUE(one.room().empty());
  EXPECT_EQ(roster.met, std::set<int>{1});
  EXPECT_TRUE(roster.expected.empty());
}

// A stranger at the address of rank 0 sends back what rank 1 says, or lets rank 1 answer itself where it accepts
// others.
TEST(Handshake, RefusesReflectedMessages) {
  ConnectingEnd one(kOne, 0, numbered(2));
  const Words greeting(one.greeting().begin(), one.greeting().end());
  const Words introduction = hears(one, greeting).send;
  // The first bytes are in the place of a verdict, and are not 0, since the rank is 1.
  EXPECT_EQ(hears(one, std::span(introduction).first(sizeof(Answer))).state, HandshakeStep::State::refused);
  // As long as an answer, with a verdict that admits and the proof that rank 1 itself has sent.
  Answer answer;
  answer.size = 2;
  std::memcpy(&answer.proof, introduction.data() + offsetof(Introduction, proof), sizeof answer.proof);
  ConnectingEnd again(kOne, 0, numbered(2));
  hears(again, again.greeting());
  EXPECT_EQ(hears(again, std::as_bytes(std::span(&answer, 1))).why, "it does not know WITAN_JOB_SECRET");

  const Member two{1, 3, "secret", "there", 1234};
  Roster roster{{2}, {}};
  AcceptingEnd accepting(two, roster, numbered(3));
  ConnectingEnd connecting(two, 0, numbered(4));
  const Words challenge = hears(accepting, connecting.greeting()).send;
  const HandshakeStep step = hears(accepting, hears(connecting, challenge).send);
  EXPECT_EQ(step.state, HandshakeStep::State::refused);
  EXPECT_EQ(step.why, "it is rank 1 and expects rank 0 here");
  EXPECT_EQ(hears(connecting, step.send).state, HandshakeStep::State::refused);
  EXPECT_EQ(roster.expected, std::set<int>{2});
}

// Rank 2 connects to a stranger instead of rank 1, who relays everything to rank 0. Neither accepts the other, and each
// has proven itself only to the other.
TEST(Handshake, RefusesAChallengeRelayedToAnotherRank) {
  const Member zero{0, 3, "secret", "here", 0}, two{2, 3, "secret", "there", 1234};
  Roster roster{{1, 2}, {}};
  AcceptingEnd accepting(zero, roster, numbered(1));
  ConnectingEnd connecting(two, 1, numbered(2));
  const Words challenge = hears(accepting, connecting.greeting()).send;
  const Words introduction = hears(connecting, challenge).send;
  const HandshakeStep step = hears(accepting, introduction);
  EXPECT_EQ(step.state, HandshakeStep::State::refused);
  EXPECT_EQ(step.why, "it is rank 2 and expects rank 1 here");
  EXPECT_EQ(hears(connecting, step.send).why, "it is rank 0 and does not expect rank 2");
  EXPECT_TRUE(roster.met.empty());
  // On another connection of rank 0 the same introduction proves nothing, since its nonce differs.
  AcceptingEnd other(zero, roster, numbered(3));
  hears(other, connecting.greeting());
  EXPECT_EQ(hears(other, introduction).why, "its WITAN_JOB_SECRET differs");
}

// Two ranks connect to each other at the same time, and both know which connection counts.
TEST(Handshake, CrossingHandshakesKeepOneConnection) {
  Roster roster{{1}, {}, {1}};
  AcceptingEnd zero(kZero, roster, numbered(1));
  ConnectingEnd one(kOne, 0, numbered(2));
  const Words introduction = hears(one, hears(zero, one.greeting()).send).send;
  const HandshakeStep told = hears(zero, introduction);
  EXPECT_EQ(told.state, HandshakeStep::State::crossed);
  EXPECT_TRUE(zero.room().empty());
  EXPECT_EQ(roster.expected, std::set<int>{1}) << "it can connect later";
  EXPECT_TRUE(roster.met.empty());
  const HandshakeStep last = hears(one, told.send);
  EXPECT_EQ(last.state, HandshakeStep::State::crossed);
  EXPECT_EQ(last.why, "it connects to this process");
  // Saying so requires the secret.
  Words guessed = told.send;
  guessed.back() ^= std::byte{1};
  ConnectingEnd again(kOne, 0, numbered(2));
  AcceptingEnd other(kZero, roster, numbered(1));
  hears(again, hears(other, again.greeting()).send);
  EXPECT_EQ(hears(again, guessed).why, "it does not know WITAN_JOB_SECRET");
}

}  // namespace
}  // namespace witan
