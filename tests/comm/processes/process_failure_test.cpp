// Failures as ranks send them.
#include "witan/comm/processes/process_failure.h"

#include <gtest/gtest.h>

#include "witan/comm/processes/inbox.h"

namespace witan {
namespace {

using FailureKind = ProcessFailure::Kind;

TEST(ProcessFailure, RoundTrips) {
  for (const ProcessFailure& failure : {ProcessFailure{FailureKind::lost, 3, "its connection ended"},
                                        {FailureKind::disagreement, 0, "rank 1 calls barrier"},
                                        {FailureKind::failed, 2, ""},
                                        {FailureKind::configuration, 1, "seed = 1 on rank 0, but 2 on rank 1"}}) {
    const auto read = parse_failure(pack_failure(failure), 4);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->kind, failure.kind);
    EXPECT_EQ(read->rank, failure.rank);
    EXPECT_EQ(read->text, failure.text);
  }
  EXPECT_LE(pack_failure({FailureKind::failed, 2, std::string(100'000, 'x')}).size(), kMostFailureBytes);
}

TEST(ProcessFailure, RefusesUnknownRanksAndEmptyMessages) {
  EXPECT_FALSE(parse_failure(pack_failure({FailureKind::failed, 4, ""}), 4)) << "four ranks are numbered 0 to 3";
  EXPECT_FALSE(parse_failure(pack_failure({FailureKind::failed, -1, ""}), 4));
  EXPECT_FALSE(parse_failure(pack_failure({static_cast<FailureKind>(4), 0, "what"}), 4));
  for (const FailureKind kind : {FailureKind::disagreement, FailureKind::configuration})
    EXPECT_FALSE(parse_failure(pack_failure({kind, 1, ""}), 4)) << "it would end the job without a message";
  const auto whole = pack_failure({FailureKind::failed, 1, ""});
  EXPECT_FALSE(parse_failure(std::span(whole).first(7), 4));
}

}  // namespace
}  // namespace witan
