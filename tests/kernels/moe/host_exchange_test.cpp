#include <algorithm>
#include <set>

#include "support/rank.h"
#include "witan/base/numbers/rng.h"
#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

using testing::Rank;
using Ids = std::vector<int32_t>;

Ids hosts_of(Rank& rank, const Ids& ids, int64_t K, int64_t copies, int64_t experts) {
  const auto T = static_cast<int64_t>(ids.size()) / K;
  const Tensor hosts = rank.tensor<int32_t>({T, copies}, Ids(static_cast<size_t>(T * copies), -7));
  kernels::choose_hosts(rank.stream, hosts, rank.tensor<int32_t>({T, K}, ids), experts);
  return hosts.to_vector<int32_t>();
}

// Three hosts of four experts; tokens that visit one host, two hosts in descending order, none, and one host with a
// dropped assignment.
TEST(ChooseHosts, NamesEachHostOfATokenOnceAndInOrder) {
  Rank rank;
  const Ids ids = {4, 7, 5, 11, 4, 1, -1, -1, -1, -1, 9, -1};
  EXPECT_EQ(hosts_of(rank, ids, 3, 3, 4), (Ids{1, -1, -1, 0, 1, 2, -1, -1, -1, 2, -1, -1}));
  EXPECT_EQ(hosts_of(rank, {3, 0, 2, 4, 6, 1}, 3, 2, 4), (Ids{0, -1, 0, 1})) << "no more than there are hosts";
  EXPECT_EQ(hosts_of(rank, {}, 2, 2, 4), Ids());
}

TEST(ChooseHosts, NamesTheDistinctHosts) {
  Rank rank;
  constexpr int64_t kTokens = 97, kTopk = 5, kHosts = 6, kExperts = 3;
  const Philox rng(3, 1);
  Ids ids;
  for (uint64_t i = 0; i < kTokens * kTopk; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(kHosts * kExperts + 1, i)) - 1);
  const Ids found = hosts_of(rank, ids, kTopk, kTopk, kExperts);
  for (size_t t = 0; t < kTokens; ++t) {
    std::set<int32_t> visited;
    for (size_t k = 0; k < kTopk; ++k)
      if (const int32_t id = ids[t * kTopk + k]; id >= 0) visited.insert(id / static_cast<int32_t>(kExperts));
    Ids expected(visited.begin(), visited.end());
    expected.resize(kTopk, -1);
    EXPECT_EQ(
        Ids(found.begin() + static_cast<ptrdiff_t>(t * kTopk), found.begin() + static_cast<ptrdiff_t>((t + 1) * kTopk)),
        expected);
  }
}

// Two tokens that visit two hosts of three experts; one of the sent copies is missing.
TEST(NumberOnHosts, NumbersTheExpertsOfACopysHost) {
  Rank rank;
  const Tensor ids = rank.tensor<int32_t>({2, 3}, {5, 0, 3, -1, 2, 1}),
               hosts = rank.tensor<int32_t>({2, 2}, {0, 1, 0, -1});
  const Tensor numbers = rank.tensor<int32_t>({4, 3}, Ids(12, -7));
  kernels::number_on_hosts(rank.stream, numbers, ids, hosts, rank.tensor<int64_t>({4}, {0, 2, -1, 1}), 3);
  EXPECT_EQ(numbers.to_vector<int32_t>(), (Ids{0, 1, 0, 0, 3, 2, 0, 0, 0, 3, 0, 1}));
}

}  // namespace
}  // namespace witan
