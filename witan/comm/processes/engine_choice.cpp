#include "witan/comm/processes/engine_choice.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/comm/rank_list.h"

namespace witan {
namespace {

constexpr uint64_t kChannel = 2;  // process_world.cpp has channel 1; those of groups are hashes
constexpr const char* kConnections = "TCP connections";

// Those that a process may use: a bit each, of the first 1024.
using Cores = std::array<uint64_t, 16>;

// What a rank tells the others, before the address of its engine. A rank that is told to use its connections says so by
// an empty message, and asks nobody.
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

// The notes of all ranks, by rank.
std::vector<Note> tell_notes(Links& links, const Note& own, double seconds) {
  const auto call = Links::Control::call;
  const Links::Bytes words = bytes_of(own);
  for (int rank = 0; rank < links.size(); ++rank)
    if (rank != links.rank()) links.send_control(rank, kChannel, call, words, seconds);
  std::vector<Note> notes(static_cast<size_t>(links.size()));
  notes[static_cast<size_t>(links.rank())] = own;
  if (own.wanted == CommEngine::sockets) return notes;
  for (int rank = 0; rank < links.size(); ++rank) {
    if (rank == links.rank()) continue;
    Links::Bytes bytes;
    links.wait(
        [&](Links::View& view) {
          if (!view.has_control(rank, kChannel, call)) return false;
          bytes = view.next_control(rank, kChannel, call);
          return true;
        },
        [&](Links::View& view) {
          return view.left(rank) ? cat("rank ", rank, " returned before it had said which engine it uses") : "";
        },
        [&](Links::View&) { return cat("rank ", rank, " did not say within ", seconds, " s which engine it uses"); },
        seconds);
    notes[static_cast<size_t>(rank)] = note_in(bytes, rank);
  }
  return notes;
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

// Whether the ranks of this host have a core each. A launcher may have bound every process to one of its own, or all to
// the same.
bool have_cores(const Links& links, const std::vector<Note>& notes) {
  Cores all{};
  int ranks = 0, cores = 0;
  for (int rank = 0; rank < links.size(); ++rank) {
    if (links.host(rank) != links.host(links.rank())) continue;
    ++ranks;
    for (size_t i = 0; i < all.size(); ++i) all[i] |= notes[static_cast<size_t>(rank)].cores[i];
  }
  for (const uint64_t word : all) cores += std::popcount(word);
  return ranks <= cores;
}

// Why ranks that were told differently cannot go on; empty: they were told the same.
std::string disagreement(const std::vector<Note>& notes) {
  for (size_t rank = 1; rank < notes.size(); ++rank)
    if (notes[rank].wanted != notes[0].wanted)
      return cat("ranks disagree on ", kEngineVariable, ": it is ", name_of(notes[0].wanted), " on rank 0 and ",
                 name_of(notes[rank].wanted), " on rank ", rank, "; set it to the same for all of them");
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
  const std::vector<Note> notes = tell_notes(links, own, seconds);
  if (wanted == CommEngine::sockets) return {kConnections};
  std::string verdict = disagreement(notes);
  const std::string why = why_not_ucx(links, notes);
  if (verdict.empty() && !why.empty() && wanted == CommEngine::ucx)
    verdict = cat(why, "; install the same everywhere, or set ", kEngineVariable, " to sockets");
  if (!verdict.empty()) {
    const auto failure = links.fail({ProcessFailure::Kind::disagreement, links.rank(), verdict});
    throw_failure(failure, links.host(failure.rank));
  }
  if (!why.empty()) return {kConnections, why};
  for (int rank = 0; rank < links.size(); ++rank)
    if (rank != links.rank())
      engine->connect(rank, notes[static_cast<size_t>(rank)].address, links.host(rank) == links.host(links.rank()));
  links.use(std::move(engine), have_cores(links, notes));
  return {cat("UCX ", own.version)};
}

}  // namespace

std::string format_engine(const EngineChoice& choice) {
  return cat("between processes by ", choice.name,
             choice.why.empty() ? "" : cat(", as UCX is not there for all (", choice.why, ")"));
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
