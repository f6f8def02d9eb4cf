#include "witan/comm/processes/rank_table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

enum class TableKind : uint32_t { places, trouble };

constexpr size_t kMostNameBytes = 255, kMostTroubleBytes = 4096;
constexpr size_t kRankBytes = sizeof(uint32_t) + sizeof(uint16_t);

template <class Number>
void put(std::vector<std::byte>& out, Number number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_name(std::vector<std::byte>& out, std::string_view name) {
  name = name.substr(0, kMostNameBytes);
  put(out, static_cast<uint8_t>(name.size()));
  put_text(out, name);
}

std::vector<std::byte> packed_places(const std::vector<RankPlace>& places) {
  std::map<std::pair<std::string, std::string>, uint32_t> hosts;
  std::vector<std::byte> names, ranks;
  for (const RankPlace& place : places) {
    const auto [host, is_new] = hosts.insert({{place.host, place.address}, static_cast<uint32_t>(hosts.size())});
    if (is_new) {
      put_name(names, place.host);
      put_name(names, place.address);
    }
    put(ranks, host->second);
    put(ranks, static_cast<uint16_t>(place.port));
  }
  std::vector<std::byte> out;
  put(out, static_cast<uint32_t>(hosts.size()));
  out.insert(out.end(), names.begin(), names.end());
  out.insert(out.end(), ranks.begin(), ranks.end());
  return out;
}

[[noreturn]] void refuse_table() {
  throw CommError("rank 0 sent a malformed table of the ranks' addresses");
}

class Reading {
 public:
  explicit Reading(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class Number>
  Number number() {
    Number number;
    std::memcpy(&number, next(sizeof number).data(), sizeof number);
    return number;
  }
  std::string name() {
    const auto bytes = next(number<uint8_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> next(size_t bytes) {
    if (bytes > left_.size()) refuse_table();
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> left_;
};

}  // namespace

std::vector<std::byte> pack_table(const RankTable& table) {
  std::vector<std::byte> body, out;
  if (table.trouble.empty())
    body = packed_places(table.places);
  else
    put_text(body, std::string_view(table.trouble).substr(0, kMostTroubleBytes));
  put(out, table.trouble.empty() ? TableKind::places : TableKind::trouble);
  put(out, static_cast<uint32_t>(body.size()));
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void RankTableReader::advance(size_t bytes) {
  got_ += bytes;
  if (got_ < bytes_.size()) return;
  if (got_ == kHeadBytes) return read_head();
  const auto body = std::span(bytes_).subspan(kHeadBytes);
  if (Reading(bytes_).number<TableKind>() == TableKind::places) return read_places();
  table_.trouble.assign(reinterpret_cast<const char*>(body.data()), body.size());
}

void RankTableReader::read_head() {
  Reading head(bytes_);
  const auto kind = head.number<TableKind>();
  const auto bytes = head.number<uint32_t>();
  const size_t most = kind == TableKind::places
                          ? sizeof(uint32_t) + static_cast<size_t>(size_) * (2 + 2 * kMostNameBytes + kRankBytes)
                          : kMostTroubleBytes;
  if (kind > TableKind::trouble || bytes == 0 || bytes > most) refuse_table();
  bytes_.resize(kHeadBytes + bytes);
}

void RankTableReader::read_places() {
  Reading body(std::span<const std::byte>(bytes_).subspan(kHeadBytes));
  const auto count = body.number<uint32_t>();
  if (count > static_cast<uint32_t>(size_)) refuse_table();
  std::vector<RankPlace> hosts;
  for (uint32_t i = 0; i < count; ++i) {
    std::string host = body.name(), address = body.name();
    hosts.push_back({std::move(host), std::move(address), 0});
  }
  for (int rank = 0; rank < size_; ++rank) {
    const auto host = body.number<uint32_t>();
    if (host >= count) refuse_table();
    table_.places.push_back(hosts[host]);
    table_.places.back().port = body.number<uint16_t>();
  }
  if (!body.at_end()) refuse_table();
}

}  // namespace witan
