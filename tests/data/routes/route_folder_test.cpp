// Folders of routes: files written by some ranks are read by others, and missing ones are named.
#include "witan/data/routes/route_folder.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kExperts = 6, kTopk = 2, kSequences = 4, kLength = 8;
const RoutedModel kModel = {kExperts, kTopk, {0, 2}};

// The token at a position, and the expert of its k-th choice in a layer, as functions, so files can be made separately.
int32_t token_at(int64_t sequence, int64_t position) {
  return static_cast<int32_t>(100 * sequence + position);
}
int32_t expert_at(int64_t layer, int64_t sequence, int64_t position, int64_t k) {
  return static_cast<int32_t>((layer + 3 * sequence + position + 2 * k) % kExperts);
}

RouteFile made(int64_t first, int64_t count, std::vector<PositionRange> positions, const std::vector<int64_t>& layers) {
  RouteFile file;
  file.step = 3;
  file.experts = kExperts;
  file.topk = kTopk;
  file.all_sequences = kSequences;
  file.sequence_length = kLength;
  file.first_sequence = first;
  file.sequences = count;
  file.positions = std::move(positions);
  const auto each = [&](const auto& visit) {
    for (int64_t s = first; s < first + count; ++s)
      for (const PositionRange& range : file.positions)
        for (int64_t p = range.first; p < range.first + range.count; ++p) visit(s, p);
  };
  each([&](int64_t s, int64_t p) { file.tokens.push_back(token_at(s, p)); });
  for (const int64_t layer : layers) {
    RouteFile::Layer& made = file.layers.emplace_back();
    made.layer = layer;
    each([&](int64_t s, int64_t p) {
      for (int64_t k = 0; k < kTopk; ++k) made.ids.push_back(expert_at(layer, s, p, k));
    });
    made.weights.assign(made.ids.size(), 0.5F);
  }
  return file;
}

// Four ranks: two pipeline stages, and sequences divided over two context-parallel ranks.
void write_divided(const fs::path& folder) {
  write_routes(folder, made(0, 4, {{0, 2}, {6, 2}}, {0}), 0, 4);
  write_routes(folder, made(0, 4, {{2, 4}}, {0}), 1, 4);
  write_routes(folder, made(0, 4, {{0, 2}, {6, 2}}, {2}), 2, 4);
  write_routes(folder, made(0, 4, {{2, 4}}, {2}), 3, 4);
}

std::vector<int32_t> tokens_of(int64_t first, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t s = first; s < first + count; ++s)
    for (int64_t p = 0; p < kLength; ++p) tokens.push_back(token_at(s, p));
  return tokens;
}

TEST(RouteFolder, AnyLayoutReadsFilesOfAnyOther) {
  const TempFolder folder;
  write_divided(folder.path());
  const RecordedRoutes routes(folder.path(), kModel, kLength);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {1, 2}, {3, 1}})
    for (const std::vector<PositionRange>& positions :
         {std::vector<PositionRange>{{0, 8}}, {{1, 3}}, {{0, 1}, {5, 2}}}) {
      const std::vector<int32_t> tokens = tokens_of(first, count);
      const RouteFile expected = made(first, count, positions, {0, 2});
      std::vector<int32_t> ids = expected.layers[0].ids;
      ids.insert(ids.end(), expected.layers[1].ids.begin(), expected.layers[1].ids.end());
      EXPECT_EQ(routes.read({3, kSequences, first, count, positions, {0, 2}, tokens}), ids);
      EXPECT_EQ(routes.read({3, kSequences, first, count, positions, {2}, tokens}), expected.layers[1].ids);
    }
}

TEST(RouteFolder, ReplacesFilesOfAnotherNumberOfRanks) {
  const TempFolder folder;
  write_divided(folder.path());
  write_routes(folder.path(), made(0, 4, {{0, 8}}, {0, 2}), 0, 1);
  EXPECT_FALSE(fs::exists(folder / "step-00000003/1-of-4.routes"));
  EXPECT_TRUE(fs::exists(folder / "step-00000003/0-of-1.routes"));
}

TEST(RouteFolder, ErrorsNameMissingOrInconsistentFiles) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { RecordedRoutes(folder / "none", kModel, kLength); }),
              HasSubstr("none: there are no recorded routes"));
  write_divided(folder.path());
  const RecordedRoutes routes(folder.path(), kModel, kLength);
  const std::vector<int32_t> tokens = tokens_of(0, 4);
  const RouteQuery all = {3, kSequences, 0, 4, {{0, 8}}, {0, 2}, tokens};
  RouteQuery later = all;
  later.step = 4;
  EXPECT_THAT(message_of<DataError>([&] { routes.read(later); }),
              AllOf(HasSubstr("step-00000004: step 4: no file has the routes of layer 0 for sequence 0")));
  RouteQuery larger = all;
  larger.all_sequences = 8;
  EXPECT_THAT(message_of<ConfigError>([&] { routes.read(larger); }),
              AllOf(HasSubstr("0-of-4.routes: step 3"), HasSubstr("global_batch_size = 4, this run has 8")));
  std::vector<int32_t> others = tokens;
  others[8 + 3] = 7;
  RouteQuery changed = all;
  changed.tokens = others;
  EXPECT_THAT(message_of<DataError>([&] { routes.read(changed); }),
              AllOf(HasSubstr("1-of-4.routes: step 3: the routes of sequence 1 were recorded of other tokens: at "
                              "position 3 token 103, in this run 7")));
  fs::remove(folder / "step-00000003/3-of-4.routes");
  EXPECT_THAT(message_of<DataError>([&] { routes.read(all); }),
              HasSubstr("step 3: no file has the routes of layer 2 for sequence 0"));
}

TEST(RouteFolder, RefusesRoutesOfAnotherModelAtOnce) {
  const TempFolder folder;
  write_divided(folder.path());
  const auto refusal = [&](const RoutedModel& model, int64_t length) {
    return message_of<ConfigError>([&] { RecordedRoutes(folder.path(), model, length); });
  };
  EXPECT_THAT(refusal({8, kTopk, {0, 2}}, kLength), HasSubstr("num_experts = 6, this run has 8"));
  EXPECT_THAT(refusal({kExperts, 3, {0, 2}}, kLength), HasSubstr("moe_router_topk = 2, this run has 3"));
  EXPECT_THAT(refusal({kExperts, kTopk, {1, 2}}, kLength),
              HasSubstr("experts in layer 0; this run has them in layers 1, 2"));
  EXPECT_THAT(refusal(kModel, 16), HasSubstr("seq_length = 8, this run has 16"));
}

TEST(RouteFolder, FindsGenerationsByTheirTokens) {
  const TempFolder folder;
  for (int64_t i = 0; i < 2; ++i) {
    RouteFile file = made(i, 1, {{0, 8}}, {0, 2});
    file.kind = RouteFile::Kind::generation;
    file.step = i + 1;
    file.first_sequence = 0;
    file.all_sequences = 1;
    write_routes(folder.path(), file, 0, 1);
  }
  // Training uses the first 6 tokens of each, in another order, at some step.
  const RecordedRoutes routes(folder.path(), kModel, 6);
  std::vector<int32_t> tokens, ids;
  for (const int64_t s : {1, 0})
    for (int64_t p = 0; p < 6; ++p) tokens.push_back(token_at(s, p));
  for (const int64_t layer : {0, 2})
    for (const int64_t s : {1, 0})
      for (int64_t p = 0; p < 6; ++p)
        for (int64_t k = 0; k < kTopk; ++k) ids.push_back(expert_at(layer, s, p, k));
  EXPECT_EQ(routes.read({17, 2, 0, 2, {{0, 6}}, {0, 2}, tokens}), ids);
  tokens[7] = 5;
  EXPECT_THAT(message_of<DataError>([&] {
                routes.read({17, 2, 0, 2, {{0, 6}}, {0, 2}, tokens});
              }),
              HasSubstr("step 17: no recorded sequence begins with the tokens of sequence 1"));
}

}  // namespace
}  // namespace witan
