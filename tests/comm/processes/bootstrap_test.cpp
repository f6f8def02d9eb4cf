// The address table that rank 0 sends: it can be read in pieces of any size, and is refused if it is damaged.
#include "witan/comm/processes/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

// Reads the table from bytes that arrive in pieces of this size.
RankTable read(std::span<const std::byte> bytes, int size, size_t at_once = 1 << 20) {
  RankTableReader reader(size);
  while (!reader.room().empty() && !bytes.empty()) {
    const auto piece = bytes.first(std::min({at_once, bytes.size(), reader.room().size()}));
    std::ranges::copy(piece, reader.room().begin());
    bytes = bytes.subspan(piece.size());
    reader.advance(piece.size());
  }
  EXPECT_TRUE(bytes.empty()) << "it reads no further than the table";
  return reader.table();
}

// This many ranks, eight to a host.
RankTable table_of(int size) {
  RankTable table;
  for (int rank = 0; rank < size; ++rank) {
    const std::string host = std::to_string(rank / 8);
    table.places.push_back({"node" + host, "10.0.0." + host, rank == 0 ? 0 : 40000 + rank});
  }
  return table;
}

void expect_same(const RankTable& a, const RankTable& b) {
  EXPECT_EQ(a.trouble, b.trouble);
  ASSERT_EQ(a.places.size(), b.places.size());
  for (size_t rank = 0; rank < a.places.size(); ++rank) {
    EXPECT_EQ(a.places[rank].host, b.places[rank].host);
    EXPECT_EQ(a.places[rank].address, b.places[rank].address);
    EXPECT_EQ(a.places[rank].port, b.places[rank].port);
  }
}

TEST(RankTable, RoundTrips) {
  for (const int size : {2, 20}) {
    const RankTable table = table_of(size);
    for (const size_t at_once : {1, 7, 1 << 20}) expect_same(read(pack_table(table), size, at_once), table);
  }
  const RankTable trouble{{}, "rank 3 of 4 did not connect"};
  for (const size_t at_once : {1, 1 << 20}) expect_same(read(pack_table(trouble), 4, at_once), trouble);
  EXPECT_EQ(read(pack_table({{}, std::string(100'000, 'x')}), 4).trouble, std::string(4096, 'x'));
}

// The table fits into a connection's buffers, so rank 0 need not wait for anyone.
TEST(RankTable, IsSmallForAThousandRanks) {
  EXPECT_LT(pack_table(table_of(1024)).size(), 10'000u);
}

TEST(RankTable, RefusesDamage) {
  const auto refusal = [](const std::vector<std::byte>& bytes, int size) {
    return test::message_of<CommError>([&] { read(bytes, size); });
  };
  const std::string malformed = "rank 0 sent a malformed table of the ranks' addresses";
  const auto good = pack_table(table_of(3));
  EXPECT_EQ(refusal(good, 2), malformed) << "more ranks";
  EXPECT_EQ(refusal(good, 4), malformed) << "fewer ranks";
  const auto with = [&](size_t at, uint8_t value) {
    auto bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  EXPECT_EQ(refusal(with(0, 2), 3), malformed) << "another kind";
  EXPECT_EQ(refusal(with(7, 0xff), 3), malformed) << "more bytes than a table can have";
  EXPECT_EQ(refusal(with(8, 200), 3), malformed) << "more hosts than ranks";
  EXPECT_EQ(refusal(with(12, 200), 3), malformed) << "a name beyond the end";
  EXPECT_EQ(refusal(with(good.size() - 6, 9), 3), malformed) << "an unknown host";
  auto longer = good;
  longer.push_back({});
  longer[4] = static_cast<std::byte>(static_cast<uint8_t>(longer[4]) + 1);
  EXPECT_EQ(refusal(longer, 3), malformed) << "an extra byte";
}

}  // namespace
}  // namespace witan
