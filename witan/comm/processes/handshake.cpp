#include "witan/comm/processes/handshake.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "witan/base/error.h"

namespace witan {
namespace {

using State = HandshakeStep::State;

constexpr std::string_view kConnects = "witan: a rank connects", kAccepts = "witan: a rank accepts";

template <class Message>
std::span<const std::byte> bytes_of(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return std::as_bytes(std::span(&message, 1));
}
template <class Message>
std::span<std::byte> writable_bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

template <class Message>
std::vector<std::byte> copy_of(const Message& message) {
  const auto bytes = bytes_of(message);
  return {bytes.begin(), bytes.end()};
}

HandshakeStep refused(const std::string& why, std::vector<std::byte> send = {}) {
  return {State::refused, std::move(send), why};
}

// The proof of a message, computed from everything before the proof.
template <class Message>
Digest256 proof_of(const std::string& secret, std::string_view role, const Greeting& connecting,
                   const Greeting& accepting, const Message& message) {
  static_assert(offsetof(Message, proof) + sizeof(Digest256) == sizeof(Message));
  std::vector<uint8_t> text(role.begin(), role.end());
  const auto add = [&](std::span<const std::byte> bytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(bytes.data());
    text.insert(text.end(), from, from + bytes.size());
  };
  add(bytes_of(connecting));
  add(bytes_of(accepting));
  add(bytes_of(message).first(offsetof(Message, proof)));
  return hmac_sha256(secret, text);
}

std::array<char, kHostBytes> host_field(const std::string& name) {
  std::array<char, kHostBytes> field{};
  std::copy_n(name.begin(), std::min(name.size(), field.size() - 1), field.begin());
  return field;
}

// Why a process with this greeting cannot be of this job; empty: it may be.
std::string stranger(const Greeting& theirs) {
  if (theirs.magic != kMagic) return "it does not speak Witan's protocol";
  if (theirs.version != kProtocol)
    return cat("it speaks version ", theirs.version, " of Witan's protocol, this program version ", kProtocol,
               "; run the same build of witan everywhere");
  return "";
}

std::string refusal(const Answer& answer, const Member& self) {
  switch (answer.verdict) {
    case Verdict::another_secret:
      return "its WITAN_JOB_SECRET differs";
    case Verdict::another_size:
      return cat("its world size is ", answer.size, ", this process's is ", self.size);
    case Verdict::rank_twice:
      return cat("another process has already joined as rank ", self.rank);
    default:
      return cat("it is rank ", answer.rank, " and does not expect rank ", self.rank);
  }
}

}  // namespace

Greeting fresh_greeting() {
  Greeting mine;
  fill_random(mine.nonce);
  return mine;
}

template <class Message>
std::span<std::byte> TwoMessages<Message>::room() {
  if (over_) return {};
  if (got_ < sizeof greeting_) return writable_bytes_of(greeting_).subspan(got_);
  return writable_bytes_of(message_).subspan(got_ - sizeof greeting_);
}

template <class Message>
template <class Greeted, class Completed>
HandshakeStep TwoMessages<Message>::advance(size_t bytes, const Greeted& greeted, const Completed& completed) {
  got_ += bytes;
  HandshakeStep step;
  if (got_ == sizeof greeting_) step = greeted();
  if (got_ == sizeof greeting_ + sizeof message_) step = completed();
  over_ = step.state != State::waits;
  return step;
}

template class TwoMessages<Introduction>;
template class TwoMessages<Answer>;

AcceptingEnd::AcceptingEnd(const Member& self, Roster& roster, const Greeting& mine)
    : self_(self), roster_(roster), mine_(mine) {}

HandshakeStep AcceptingEnd::advance(size_t bytes) {
  return received_.advance(
      bytes, [this] { return read_greeting(); }, [this] { return read_introduction(); });
}

// A greeting is answered whatever its version, so that the other side can say what is wrong.
HandshakeStep AcceptingEnd::read_greeting() {
  const std::string why = stranger(received_.greeting());
  if (received_.greeting().magic != kMagic) return refused(why);
  if (!why.empty()) return refused(why, copy_of(mine_));
  return {State::waits, copy_of(mine_)};
}

Verdict AcceptingEnd::verdict() const {
  const Introduction& introduction = received_.message();
  if (!same_digest(proof_of(self_.secret, kConnects, received_.greeting(), mine_, introduction), introduction.proof))
    return Verdict::another_secret;
  if (introduction.size != self_.size) return Verdict::another_size;
  if (introduction.to != self_.rank) return Verdict::another_rank;
  if (roster_.met.contains(introduction.rank)) return Verdict::rank_twice;
  if (roster_.connecting.contains(introduction.rank)) return Verdict::crossed;
  return roster_.expected.contains(introduction.rank) ? Verdict::admitted : Verdict::another_rank;
}

HandshakeStep AcceptingEnd::read_introduction() {
  const Introduction& introduction = received_.message();
  Answer answer{verdict(), self_.rank, self_.size, 0, {}};
  switch (answer.verdict) {
    case Verdict::admitted:
    case Verdict::crossed:
      break;
    case Verdict::another_secret:
      return refused("its WITAN_JOB_SECRET differs", copy_of(answer));
    case Verdict::another_size:
      return refused(cat("its world size is ", introduction.size, ", not ", self_.size), copy_of(answer));
    case Verdict::rank_twice:
      return refused(cat("rank ", introduction.rank, " has joined already"), copy_of(answer));
    case Verdict::another_rank:
      return refused(cat("it is rank ", introduction.rank, " and expects rank ", introduction.to, " here"),
                     copy_of(answer));
  }
  answer.proof = proof_of(self_.secret, kAccepts, received_.greeting(), mine_, answer);
  if (answer.verdict == Verdict::crossed) return {State::crossed, copy_of(answer), "this process connects to it"};
  roster_.expected.erase(introduction.rank);
  roster_.met.insert(introduction.rank);
  return {State::done, copy_of(answer)};
}

std::string AcceptingEnd::host() const {
  std::string text;
  for (const char c : received_.message().host) {
    if (c == 0) break;
    text += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ? c : '?';
  }
  return text;
}

ConnectingEnd::ConnectingEnd(const Member& self, int to, const Greeting& mine) : self_(self), to_(to), mine_(mine) {}

std::span<const std::byte> ConnectingEnd::greeting() const {
  return bytes_of(mine_);
}

HandshakeStep ConnectingEnd::advance(size_t bytes) {
  return received_.advance(
      bytes, [this] { return read_greeting(); }, [this] { return read_answer(); });
}

HandshakeStep ConnectingEnd::read_greeting() {
  if (const std::string why = stranger(received_.greeting()); !why.empty()) return refused(why);
  Introduction introduction{self_.rank, self_.size, to_, self_.port, host_field(self_.host), {}};
  introduction.proof = proof_of(self_.secret, kConnects, mine_, received_.greeting(), introduction);
  return {State::waits, copy_of(introduction)};
}

HandshakeStep ConnectingEnd::read_answer() {
  const Verdict verdict = received_.message().verdict;
  if (verdict != Verdict::admitted && verdict != Verdict::crossed) return refused(refusal(received_.message(), self_));
  if (!same_digest(received_.message().proof,
                   proof_of(self_.secret, kAccepts, mine_, received_.greeting(), received_.message())))
    return refused("it does not know WITAN_JOB_SECRET");
  if (verdict == Verdict::crossed) return {State::crossed, {}, "it connects to this process"};
  return {State::done};
}

}  // namespace witan
