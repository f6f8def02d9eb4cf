#include "witan/comm/checks/call_terms.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using Kind = Collective::Kind;

CallTerms terms(Kind kind, const Shape& shape, Reduce reduce = Reduce::sum) {
  CallTerms out;
  out.kind = kind;
  out.reduce = reduce;
  out.moves = true;
  out.shape = shape;
  return out;
}

CallLog log_of(const std::vector<CallTerms>& calls, uint64_t first = 1) {
  CallLog log;
  for (const CallTerms& one : calls) log.add(first++, one);
  return log;
}

TEST(CallLog, HashesTermsInOrder) {
  const CallTerms a = terms(Kind::all_reduce, {3}), b = terms(Kind::all_gather, {3});
  EXPECT_EQ(CallLog().digest(), 0u);
  EXPECT_EQ(log_of({a, b}).digest(), log_of({a, b}).digest());
  EXPECT_NE(log_of({a, b}).digest(), log_of({b, a}).digest());
  EXPECT_NE(log_of({a, b}).digest(), log_of({a}).digest());
  EXPECT_NE(log_of({a, a}).digest(), log_of({a}).digest());
  EXPECT_NE(log_of({a}, 1).digest(), log_of({a}, 2).digest()) << "the same call again";
  EXPECT_NE(log_of({a}).digest(), log_of({terms(Kind::all_reduce, {3}, Reduce::max)}).digest());
  CallTerms elsewhere = a;
  elsewhere.trace_context.step = 7;
  EXPECT_EQ(log_of({elsewhere}).digest(), log_of({a}).digest()) << "call sites may differ";
  CallLog log = log_of({a, b});
  log.clear();
  EXPECT_EQ(log.digest(), 0u);
  EXPECT_TRUE(log.calls().empty());
}

TEST(CallLog, RoundTripsThroughBytes) {
  const CallLog log = log_of({terms(Kind::all_reduce, {3, 4}), terms(Kind::broadcast, {})}, 41);
  const std::vector<std::byte> bytes = pack(log.calls());
  const auto back = unpack_calls(bytes, 2);
  ASSERT_EQ(back.size(), 2u);
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].number, 41 + i);
    EXPECT_EQ(back[i].terms, log.calls()[i].terms);
  }
  EXPECT_TRUE(unpack_calls({}, 0).empty());
  const size_t first = 16 + log.calls()[0].terms.size();
  for (size_t size = 1; size < bytes.size(); ++size) {
    if (size == first) continue;  // a list of one
    EXPECT_EQ(test::message_of<CommError>([&] { unpack_calls(std::span(bytes).first(size), 2); }),
              "malformed list of calls from rank 2");
  }
  std::vector<std::byte> huge = bytes;
  std::fill(huge.begin() + 8, huge.begin() + 16, std::byte{0xff});  // the size of the first call's terms
  EXPECT_EQ(test::message_of<CommError>([&] { unpack_calls(huge, 2); }), "malformed list of calls from rank 2");
}

TEST(CallLog, NamesTheFirstDifferentCall) {
  const std::string axis = "data";
  const std::vector<int> ranks = {4, 5, 6};
  const GroupNames names{axis, ranks};
  const CallTerms a = terms(Kind::all_reduce, {3}), b = terms(Kind::all_gather, {3}), c = terms(Kind::all_reduce, {5});
  const auto differ = [&](const std::vector<CallLog>& logs) {
    std::vector<std::vector<CallLog::Call>> calls;
    for (const CallLog& one : logs) calls.push_back(one.calls());
    return disagreement(names, calls);
  };
  EXPECT_EQ(differ({log_of({a, b, c}), log_of({a, b, c}), log_of({a, b, c})}), "");
  EXPECT_EQ(differ({log_of({a, b, c}), log_of({a}), CallLog()}), "") << "ranks that have not reached this call";
  EXPECT_EQ(differ({log_of({a, b}), log_of({a, c}), log_of({a, b})}),
            "axis data: rank 5 calls all_reduce float32 [5], expected as on rank 4: all_gather float32 [3]");
  EXPECT_EQ(differ({CallLog(), log_of({a, b}), log_of({c, b})}),
            "axis data: rank 6 calls all_reduce float32 [5], expected as on rank 5: all_reduce float32 [3]")
      << "among the known calls";
  EXPECT_EQ(differ({log_of({a, b}, 1), log_of({b, b}, 2), log_of({a, b}, 1)}), "")
      << "compared by number, not by call site";
}

}  // namespace
}  // namespace witan
