#include "witan/comm/checks/preflight.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/comm/checks/call_terms.h"
#include "witan/comm/checks/fingerprint.h"
#include "witan/comm/host_group.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

constexpr char kEndOfKey = '\0', kEndOfValue = '\x01';
constexpr size_t kMostNamed = 4;  // keys

std::string packed(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += key + kEndOfKey + value + kEndOfValue;
  return text;
}

// Restores settings from the text of packed().
Settings unpacked(const std::string& text) {
  Settings settings;
  for (size_t at = 0; at < text.size();) {
    const size_t key = text.find(kEndOfKey, at), value = text.find(kEndOfValue, at);
    require<CommError>(key < value && value < text.size(), "malformed settings from another rank");
    settings.emplace_back(text.substr(at, key - at), text.substr(key + 1, value - key - 1));
    at = value + 1;
  }
  return settings;
}

// The values of one key and the ranks that have each. A rank without the key has no value.
std::string values_of(const std::string& key, const std::vector<Settings>& settings) {
  std::map<std::string, std::vector<int>> holders;
  for (size_t rank = 0; rank < settings.size(); ++rank) {
    const auto found = std::ranges::find(settings[rank], key, &Settings::value_type::first);
    holders[found == settings[rank].end() ? "(unknown)" : found->second].push_back(static_cast<int>(rank));
  }
  if (holders.size() < 2) return "";
  std::vector<std::pair<std::string, std::vector<int>>> values(holders.begin(), holders.end());
  std::ranges::stable_sort(values, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second < b.second;
  });
  std::string text = key + " =";
  for (size_t i = 0; i < values.size(); ++i)
    text += cat(i == 0   ? " "
                : i == 1 ? ", but "
                         : ", ",
                values[i].first.empty() ? "\"\"" : values[i].first, " on ", rank_list(values[i].second));
  return text;
}

}  // namespace

std::string difference(const std::vector<Settings>& settings) {
  std::vector<std::string> keys;
  for (const Settings& of_rank : settings)
    for (const auto& [key, value] : of_rank)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  std::vector<std::string> named;
  for (const std::string& key : keys)
    if (std::string one = values_of(key, settings); !one.empty()) named.push_back(std::move(one));
  std::string text;
  for (size_t i = 0; i < std::min(named.size(), kMostNamed); ++i) text += (i == 0 ? "" : "; ") + named[i];
  return named.size() <= kMostNamed ? text : cat(text, "; and ", named.size() - kMostNamed, " more");
}

void require_same_settings(Stream& stream, Group& world, const Settings& own) {
  const std::string text = packed(own);
  Hasher hasher;
  hasher.update(text.data(), text.size());
  const auto hash = static_cast<int64_t>(hasher.low64());
  const Tensor mine = stream.empty({1}, DType::i64, MemoryTag::communication);
  stream.write(mine, &hash);
  if (ranks_that_differ(stream, world, mine).empty()) return;
  std::vector<Settings> settings;  // on rank 0
  for (const std::string& one : gather_texts(world, stream, text)) settings.push_back(unpacked(one));
  const std::string differs = broadcast_text(world, stream, difference(settings), 0);
  world.barrier(stream);  // no rank leaves before all know
  throw SettingsDifferError(cat("the ranks were started differently: ", differs,
                                ". Start all of them with the same command and configuration"));
}

namespace {

using Kind = Collective::Kind;
using Lane = CallSchedule::Lane;

bool is_between_two(const Collective& call) {
  return call.kind == Kind::send || call.kind == Kind::recv;
}

constexpr std::string_view kPartsMark = " #";  // before a hash of parts, which is compared but not shown

// Describes a call without what may differ between ranks: the rows of an uneven exchange, and the end of a pair.
std::string words_of(const Collective& call) {
  CallTerms terms = terms_without_counts(call);
  if (is_between_two(call)) return cat(terms.dtype, " ", terms.shape);
  if (call.kind == Kind::all_to_all) terms.shape = terms.shape.with(0, 0);
  return terms.parts == 0 ? describe(terms) : cat(describe(terms), kPartsMark, terms.parts);
}

std::string shown(const std::string& call) {
  return call.substr(0, call.find(kPartsMark));
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

struct Mismatch {
  uint64_t lane;
  int rank, other;  // -1: no other rank has the lane
};

// The first lane, in the order of ranks, about which two ranks differ. `told`: [ranks][lanes][id, hash], 0: no lane.
std::optional<Mismatch> find_mismatch(std::span<const int64_t> told, int ranks) {
  struct First {
    int rank;
    int64_t hash;
    int holders;
  };
  std::map<int64_t, First> firsts;
  std::vector<int64_t> order;
  const size_t each = told.size() / static_cast<size_t>(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = told.subspan(static_cast<size_t>(rank) * each, each);
    for (size_t i = 0; i < own.size() && own[i] != 0; i += 2) {
      const auto [found, anew] = firsts.try_emplace(own[i], First{rank, own[i + 1], 0});
      if (anew) order.push_back(own[i]);
      ++found->second.holders;
      if (found->second.hash != own[i + 1]) return Mismatch{static_cast<uint64_t>(own[i]), found->second.rank, rank};
    }
  }
  for (const int64_t id : order)
    if (firsts.at(id).holders == 1) return Mismatch{static_cast<uint64_t>(id), firsts.at(id).rank, -1};
  return std::nullopt;
}

// [ranks][lanes][id, hash] of all ranks.
std::vector<int64_t> tell_hashes(Stream& stream, Group& world, const std::vector<Lane>& lanes) {
  const Tensor most = stream.empty({1}, DType::i64, MemoryTag::communication);
  *most.data<int64_t>() = static_cast<int64_t>(lanes.size());
  world.all_reduce(stream, most, Reduce::max);
  const Tensor own = stream.zeros({1, 2 * *most.data<int64_t>()}, DType::i64, MemoryTag::communication);
  int64_t* at = own.data<int64_t>();
  for (const Lane& lane : lanes) {
    *at++ = static_cast<int64_t>(lane.id());
    *at++ = static_cast<int64_t>(lane.hash());
  }
  const Tensor all = stream.empty({world.size(), own.elements()}, DType::i64, MemoryTag::communication);
  world.all_gather(stream, all, own);
  return all.to_vector<int64_t>();
}

// The calls of rank `of` on a lane; collective.
Lane told_by(Stream& stream, Group& world, const Lane* own, int of) {
  Lane lane;
  const auto tell = [&](const std::string& text) { return broadcast_text(world, stream, text, of); };
  lane.name = tell(own == nullptr ? "" : own->name);
  lane.calls = split(tell(own == nullptr ? "" : joined(own->calls)));
  lane.places = split(tell(own == nullptr ? "" : joined(own->places)));
  lane.sizes = split(tell(own == nullptr ? "" : joined(own->sizes)));
  return lane;
}

std::string call_at(const Lane& lane, size_t i) {
  if (i >= lane.calls.size()) return "no further call";
  const std::string place = i < lane.places.size() ? lane.places[i] : "";
  return cat(shown(lane.calls[i]), place.empty() ? "" : " in " + place);
}

std::string words_of(const Lane& a, int rank, const Lane& b, int other) {
  const auto differs = std::ranges::mismatch(a.calls, b.calls);
  const auto i = static_cast<size_t>(differs.in1 - a.calls.begin());
  const bool in_parts = i < a.calls.size() && i < b.calls.size() && shown(a.calls[i]) == shown(b.calls[i]);
  return cat(a.name, ": call ", i + 1, " of a step would be ", call_at(a, i), " on rank ", rank, ", but ",
             call_at(b, i), " on rank ", other,
             in_parts ? "; " + parts_disagreement(rank, a.sizes[i], other, b.sizes[i]) : "");
}

// Describes a lane that no other rank has.
std::string words_of(const Lane& lane, int rank) {
  const size_t calls = lane.calls.size();
  return cat(lane.name, ": rank ", rank, " would make ", calls, calls == 1 ? " call" : " calls",
             calls == 0 ? "" : ", first " + call_at(lane, 0), ", and no other rank would make any");
}

}  // namespace

uint64_t Lane::id() const {
  Hasher hasher;
  hasher.update(name.data(), name.size() + 1);
  hasher.update(ranks.data(), ranks.size() * sizeof(int));
  return hasher.low64() | 1;  // never 0
}

uint64_t Lane::hash() const {
  const std::string text = joined(calls);
  Hasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.low64();
}

void CallSchedule::follow(Group& group, const std::vector<int>& ranks) {
  if (group.size() == 1) return;
  ranks_[&group] = ranks;
  lanes_.push_back({cat("axis ", group.name()), ranks});
  group.observe(this);
}

CallSchedule::Lane& CallSchedule::lane_of(const Group& group, const Collective& call) {
  const std::vector<int>& ranks = ranks_.at(&group);
  Lane wanted{cat("axis ", group.name()), ranks};
  if (is_between_two(call)) {
    const int here = ranks[static_cast<size_t>(group.rank())], peer = ranks[static_cast<size_t>(call.peer)];
    wanted.ranks = call.kind == Kind::send ? std::vector{here, peer} : std::vector{peer, here};
    wanted.name += cat(", from rank ", wanted.ranks[0], " to rank ", wanted.ranks[1]);
  }
  const auto found = std::ranges::find_if(
      lanes_, [&](const Lane& lane) { return lane.ranks == wanted.ranks && lane.name == wanted.name; });
  return found == lanes_.end() ? lanes_.emplace_back(std::move(wanted)) : *found;
}

void CallSchedule::begins(const Group& group, const Collective& call, double) {
  Lane& lane = lane_of(group, call);
  lane.calls.push_back(words_of(call));
  lane.sizes.push_back(sizes_of(terms_without_counts(call)));
  lane.places.push_back(call.trace_context == nullptr ? "" : describe(*call.trace_context));
}

void require_same_schedule(Stream& stream, Group& world, const CallSchedule& own) {
  const auto mismatch = find_mismatch(tell_hashes(stream, world, own.lanes()), world.size());
  if (!mismatch) return;
  const auto lane = std::ranges::find(own.lanes(), mismatch->lane, &Lane::id);
  const Lane* mine = lane == own.lanes().end() ? nullptr : &*lane;
  const Lane first = told_by(stream, world, mine, mismatch->rank);
  const Lane second = mismatch->other < 0 ? Lane{} : told_by(stream, world, mine, mismatch->other);
  world.barrier(stream);  // no rank leaves before all know
  throw CommError(cat(
      "ranks disagree on the collectives of a step: ",
      mismatch->other < 0 ? words_of(first, mismatch->rank) : words_of(first, mismatch->rank, second, mismatch->other),
      ". Start all ranks with the same program, on devices of the same kind"));
}

}  // namespace witan
