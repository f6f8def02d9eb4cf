#include "witan/comm/processes/message_engine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/comm/host_group.h"
#include "witan/comm/processes/links.h"

namespace witan {
namespace {

constexpr uint64_t kChannel = 2;  // process_world.cpp has channel 1; those of groups are hashes
constexpr const char* kConnections = "TCP connections";
constexpr size_t kMostAddressBytes = size_t{1} << 16;
constexpr auto kNote = Links::Control::call, kDecision = Links::Control::answer, kReady = Links::Control::ready;

// The cores that a process may use, a bit for each of the first 1024.
using Cores = std::array<uint64_t, 16>;

// The note of a rank to rank 0, before the address of its engine. A rank that must use its connections sends an empty
// message.
struct NoteHead {
  uint32_t wanted = 0;
  uint32_t has_engine = 0;
  std::array<char, 24> version{};
  std::array<char, 224> why_not{};
  Cores cores{};
};
struct Note {
  CommEngine wanted = CommEngine::sockets;
  bool has_engine = false;
  std::string version, why_not;
  Cores cores{};
  Links::Bytes address;
};

template <size_t N>
void fill(std::array<char, N>& field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field.begin());
}
template <size_t N>
std::string text_in(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}

Links::Bytes bytes_of(const Note& note) {
  if (note.wanted == CommEngine::sockets) return {};
  NoteHead head{static_cast<uint32_t>(note.wanted), note.has_engine ? 1U : 0U, {}, {}, note.cores};
  fill(head.version, note.version);
  fill(head.why_not, note.why_not);
  Links::Bytes bytes(sizeof head + note.address.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy(note.address.begin(), note.address.end(), bytes.begin() + sizeof head);
  return bytes;
}

Note note_in(const Links::Bytes& bytes, int rank) {
  if (bytes.empty()) return {};
  NoteHead head;
  require<CommError>(bytes.size() >= sizeof head, "rank ", rank, " did not say which engine it uses");
  std::memcpy(&head, bytes.data(), sizeof head);
  require<CommError>(head.wanted == static_cast<uint32_t>(CommEngine::automatic) ||
                         head.wanted == static_cast<uint32_t>(CommEngine::ucx),
                     "rank ", rank, " asks for an unknown engine");
  return {static_cast<CommEngine>(head.wanted),
          head.has_engine == 1,
          text_in(head.version),
          text_in(head.why_not),
          head.cores,
          {bytes.begin() + sizeof head, bytes.end()}};
}

Cores own_cores() {
  Cores cores{};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (size_t core = 0; core < CPU_SETSIZE && core / 64 < cores.size(); ++core)
    if (CPU_ISSET(core, &set)) cores[core / 64] |= uint64_t{1} << core % 64;
  return cores;
}

// Whether the ranks of each host have a core each. A launcher may have bound every process to one of its own, or all to
// the same.
std::vector<bool> have_cores(const Links& links, const std::vector<Note>& notes) {
  struct Host {
    Cores cores{};
    int ranks = 0;
  };
  std::map<std::string, Host> hosts;
  for (int rank = 0; rank < links.size(); ++rank) {
    Host& host = hosts[links.host(rank)];
    ++host.ranks;
    for (size_t i = 0; i < host.cores.size(); ++i) host.cores[i] |= notes[static_cast<size_t>(rank)].cores[i];
  }
  std::vector<bool> have;
  for (int rank = 0; rank < links.size(); ++rank) {
    const Host& host = hosts.at(links.host(rank));
    int cores = 0;
    for (const uint64_t word : host.cores) cores += std::popcount(word);
    have.push_back(host.ranks <= cores);
  }
  return have;
}

std::string words_of(CommEngine first, CommEngine other, int rank) {
  return cat("ranks disagree on ", kEngineVariable, ": it is ", name_of(first), " on rank 0 and ", name_of(other),
             " on rank ", rank, "; set it to the same for all of them");
}

// Why ranks with different settings cannot go on; empty: the settings agree.
std::string disagreement(const std::vector<Note>& notes) {
  for (size_t rank = 1; rank < notes.size(); ++rank)
    if (notes[rank].wanted != notes[0].wanted)
      return words_of(notes[0].wanted, notes[rank].wanted, static_cast<int>(rank));
  return "";
}

// Why UCX cannot carry the job's messages; empty: it can.
std::string why_not_ucx(const Links& links, const std::vector<Note>& notes) {
  const auto who = [&](size_t rank) { return cat("rank ", rank, " on ", links.host(static_cast<int>(rank))); };
  for (size_t rank = 0; rank < notes.size(); ++rank)
    if (!notes[rank].has_engine) return cat(who(rank), ": ", notes[rank].why_not);
  for (size_t rank = 1; rank < notes.size(); ++rank)
    if (notes[rank].version != notes[0].version)
      return cat(who(0), " has UCX ", notes[0].version, " and ", who(rank), " has ", notes[rank].version);
  return "";
}

// The answer of rank 0, before the reason why it is not UCX, or the size of each rank's address. The answer is empty if
// rank 0 must use its connections.
struct DecisionHead {
  uint32_t ucx = 0;
  uint32_t looks = 0;  // the ranks of that host have a core each
};

Links::Bytes next_control(Links& links, int from, Links::Control kind, double seconds) {
  return links.await_control(from, kChannel, kind,
                             cat("rank ", from, " returned before it had said which engine it uses"),
                             cat("rank ", from, " did not say within ", seconds, " s which engine it uses"), seconds);
}

[[noreturn]] void disagree(Links& links, const std::string& verdict) {
  const auto failure = links.fail({ProcessFailure::Kind::disagreement, links.rank(), verdict});
  throw_failure(failure, links.host(failure.rank));
}

// The addresses of all ranks' engines, one after the other, and how many bytes each has.
struct Addresses {
  std::vector<uint32_t> sizes;
  Links::Bytes bytes;
};

void use(Links& links, std::unique_ptr<MessageEngine> engine, const Addresses& all, bool looks) {
  size_t begin = 0;
  for (int rank = 0; rank < links.size(); ++rank) {
    const size_t bytes = all.sizes[static_cast<size_t>(rank)];
    if (rank != links.rank())
      engine->connect(rank, std::span(all.bytes).subspan(begin, bytes), links.host(rank) == links.host(links.rank()));
    begin += bytes;
  }
  links.use(std::move(engine), looks);
}

// Rank 0 receives the notes of all ranks and sends each its decision.
EngineChoice decide(Links& links, const Note& own, std::unique_ptr<MessageEngine> engine, double seconds) {
  std::vector<Note> notes = {own};
  for (int rank = 1; rank < links.size(); ++rank)
    notes.push_back(note_in(next_control(links, rank, kNote, seconds), rank));
  std::string verdict = disagreement(notes);
  const std::string why = why_not_ucx(links, notes);
  if (verdict.empty() && !why.empty() && own.wanted == CommEngine::ucx)
    verdict = cat(why, "; install the same everywhere, or set ", kEngineVariable, " to sockets");
  if (!verdict.empty()) disagree(links, verdict);
  const std::vector<bool> looks = have_cores(links, notes);
  Addresses all;
  for (const Note& note : notes) {
    all.sizes.push_back(static_cast<uint32_t>(note.address.size()));
    all.bytes.insert(all.bytes.end(), note.address.begin(), note.address.end());
  }
  const auto tail = why.empty() ? std::as_bytes(std::span(all.sizes)) : std::as_bytes(std::span(why));
  for (int rank = 1; rank < links.size(); ++rank) {
    const DecisionHead head{why.empty() ? 1U : 0U, looks[static_cast<size_t>(rank)] ? 1U : 0U};
    Links::Bytes words(sizeof head + tail.size());
    std::memcpy(words.data(), &head, sizeof head);
    std::ranges::copy(tail, words.begin() + sizeof head);
    links.send_control(rank, kChannel, kDecision, words, seconds);
  }
  if (!why.empty()) return {kConnections, why};
  for (int rank = 1; rank < links.size(); ++rank) {
    next_control(links, rank, kReady, seconds);
    links.send_data(rank, kChannel, kChannel, all.bytes.data(), std::ssize(all.bytes), seconds);
  }
  use(links, std::move(engine), all, looks[0]);
  return {cat("UCX ", own.version)};
}

// The other ranks send their notes and follow the decision.
EngineChoice follow(Links& links, const Note& own, std::unique_ptr<MessageEngine> engine, double seconds) {
  links.send_control(0, kChannel, kNote, bytes_of(own), seconds);
  if (own.wanted == CommEngine::sockets) return {kConnections};
  const Links::Bytes words = next_control(links, 0, kDecision, seconds);
  if (words.empty()) disagree(links, words_of(CommEngine::sockets, own.wanted, links.rank()));
  DecisionHead head;
  require<CommError>(words.size() >= sizeof head, "rank 0 did not say which engine is used");
  std::memcpy(&head, words.data(), sizeof head);
  const auto tail = std::span(words).subspan(sizeof head);
  if (head.ucx == 0) return {kConnections, {reinterpret_cast<const char*>(tail.data()), tail.size()}};
  Addresses all{std::vector<uint32_t>(static_cast<size_t>(links.size())), {}};
  require<CommError>(engine != nullptr && tail.size() == all.sizes.size() * sizeof(uint32_t),
                     "rank 0 sent a malformed list of the ranks' engines");
  std::memcpy(all.sizes.data(), tail.data(), tail.size());
  for (const uint32_t size : all.sizes)
    require<CommError>(size <= kMostAddressBytes, "rank 0 sent a malformed list of the ranks' engines");
  all.bytes.resize(std::accumulate(all.sizes.begin(), all.sizes.end(), size_t{0}));
  links.take(0, kChannel, kChannel, all.bytes.data(), std::ssize(all.bytes));
  links.send_control(0, kChannel, kReady, {}, seconds);
  links.wait([](Links::View& view) { return view.arrived(0, kChannel); },
             [](Links::View& view) { return view.left(0) ? "rank 0 returned before all ranks had met" : ""; },
             [&](Links::View&) { return cat("rank 0 did not send the engines' addresses within ", seconds, " s"); },
             seconds);
  use(links, std::move(engine), all, head.looks == 1);
  return {cat("UCX ", own.version)};
}

EngineChoice choose(Links& links, CommEngine wanted, double seconds) {
  Note own{.wanted = wanted, .has_engine = false, .version = {}, .why_not = {}, .cores = own_cores(), .address = {}};
  std::unique_ptr<MessageEngine> engine;
  if (wanted != CommEngine::sockets) {
    own.why_not = why_no_ucx();
    try {
      if (own.why_not.empty()) engine = make_ucx_engine(links.rank(), links.size());
    } catch (const CommError& error) {
      own.why_not = error.what();
    }
    require<ConfigError>(engine != nullptr || wanted == CommEngine::automatic, kEngineVariable, " is ucx, but ",
                         own.why_not, "; or set it to sockets, for all ranks");
  }
  if (engine != nullptr) {
    own.has_engine = true;
    own.version = ucx_version();
    own.address = engine->address();
  }
  if (links.rank() != 0) return follow(links, own, std::move(engine), seconds);
  if (wanted != CommEngine::sockets) return decide(links, own, std::move(engine), seconds);
  for (int rank = 1; rank < links.size(); ++rank) links.send_control(rank, kChannel, kDecision, {}, seconds);
  return {kConnections};
}

}  // namespace

std::string format_engine(const EngineChoice& choice) {
  return cat("between processes by ", choice.name,
             choice.why.empty() ? "" : cat(", as UCX is not there for all (", choice.why, ")"));
}

void load_engine(CommEngine wanted) {
  if (wanted != CommEngine::sockets) why_no_ucx();  // which loads it to find out
}

EngineChoice choose_engine(Links& links, CommEngine wanted, double seconds) {
  try {
    return choose(links, wanted, seconds);
  } catch (const std::exception& error) {
    links.fail({ProcessFailure::Kind::failed, links.rank(), error.what()});
    throw;
  }
}

}  // namespace witan
