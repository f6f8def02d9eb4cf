// What two ranks say of each other when they meet, and somebody between them who hears and changes it.
#include "witan/comm/processes/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "support/message_of.h"
#include "witan/base/error.h"

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

// Rank 0, which waits for rank 1 on a thread of its own.
class Accepting {
 public:
  ~Accepting() {
    if (thread_.joinable()) thread_.join();
  }
  Socket connect() const {
    std::string why;
    auto socket = connect_to({"127.0.0.1", local_end(listener_).port}, deadline_in(5), why);
    EXPECT_TRUE(socket) << why;
    return std::move(*socket);
  }
  std::vector<Guest> guests() {
    thread_.join();
    return std::move(guests_);
  }

 private:
  const Socket listener_ = listen_at({"127.0.0.1", 0});
  std::vector<Guest> guests_;
  std::thread thread_{[this] { receive_guests(listener_, kZero, {1}, deadline_in(20), guests_); }};
};

// Rank 1, which introduces itself on a thread of its own to whoever holds the other end.
class Introducing {
 public:
  Introducing() {
    int ends[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    other = Socket(ends[1]);
    guest_ = std::async(std::launch::async, [own = Socket(ends[0])]() mutable {
      std::string why;
      return introduce(std::move(own), {"127.0.0.1", 1}, kOne, 0, deadline_in(5), why);
    });
  }
  std::optional<Guest> guest() { return guest_.get(); }

  Socket other;

 private:
  std::future<std::optional<Guest>> guest_;
};

// All that goes from one to the other while they meet.
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

TEST(Handshake, WhatIsSaidIsUnderstood) {
  Accepting zero;
  Introducing one;
  meet(zero, one);
  EXPECT_EQ(one.guest()->rank, 0);
  const std::vector<Guest> guests = zero.guests();
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].rank, 1);
  EXPECT_EQ(guests[0].host, "there");
  EXPECT_EQ(guests[0].port, 1234);
}

// Its proof covers where a rank is heard, which the others believe.
TEST(Handshake, AnIntroductionThatIsChangedOnItsWayIsTurnedAway) {
  Accepting zero;
  for (size_t byte = 0; byte < sizeof(Introduction); ++byte) {
    Introducing one;
    meet(zero, one, flipped(byte));
    EXPECT_THAT(test::message_of<CommError>([&] { one.guest(); }), HasSubstr("its WITAN_JOB_SECRET differs"));
    ASSERT_FALSE(HasFailure()) << "byte " << byte;
  }
  Introducing one;
  meet(zero, one);
  EXPECT_TRUE(one.guest());
  EXPECT_EQ(zero.guests().size(), 1u);
}

TEST(Handshake, AnAnswerThatIsChangedOnItsWayIsNotBelieved) {
  for (size_t byte = 0; byte < sizeof(Answer); ++byte) {
    Accepting zero;
    Introducing one;
    meet(zero, one, {}, flipped(byte));
    EXPECT_THAT(test::message_of<CommError>([&] { one.guest(); }), HasSubstr("is not rank 0 of this job"));
    ASSERT_FALSE(HasFailure()) << "byte " << byte;
  }
}

TEST(Handshake, WhoDoesNotKnowTheSecretCannotAnswer) {
  Introducing one;
  const Greeting greeting;
  Answer answer;
  answer.size = 2;
  received(one.other, sizeof(Greeting));
  sent(one.other, {reinterpret_cast<const char*>(&greeting), sizeof greeting});
  received(one.other, sizeof(Introduction));
  sent(one.other, {reinterpret_cast<const char*>(&answer), sizeof answer});
  EXPECT_THAT(test::message_of<CommError>([&] { one.guest(); }), HasSubstr("it does not know WITAN_JOB_SECRET"));
}

// Each side proves that it speaks now: what was heard of another meeting opens no door.
TEST(Handshake, WhatWasHeardOnceIsOfNoUseAgain) {
  Heard heard;
  {
    Accepting zero;
    Introducing one;
    heard = meet(zero, one);
    EXPECT_TRUE(one.guest());
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
    EXPECT_THAT(test::message_of<CommError>([&] { one.guest(); }), HasSubstr("it does not know WITAN_JOB_SECRET"));
  }
  Introducing one;
  meet(zero, one);
  EXPECT_TRUE(one.guest());
}

}  // namespace
}  // namespace witan
