#include "witan/comm/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

const std::vector<std::vector<Axis>> kViews = {
    {Axis::pipeline, Axis::replicate, Axis::shard, Axis::context, Axis::tensor},
    {Axis::pipeline, Axis::expert_replicate, Axis::expert_shard, Axis::expert, Axis::expert_tensor}};

// All ways to write `product` as four ordered factors.
std::vector<std::array<int, 4>> factorisations(int product) {
  std::vector<std::array<int, 4>> all;
  for (int a = 1; a <= product; ++a)
    for (int b = 1; b <= product / a; ++b)
      for (int c = 1; c <= product / a / b; ++c)
        if (product % (a * b * c) == 0) all.push_back({a, b, c, product / (a * b * c)});
  return all;
}

// Each group along `axes` contains the ranks whose other coordinates agree, in coordinate order.
void check_groups(const Mesh& mesh, const std::vector<Axis>& view, const std::vector<Axis>& axes) {
  int expected_size = 1;
  for (const Axis axis : axes) expected_size *= mesh.size(axis);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto group = mesh.ranks(rank, axes);
    ASSERT_EQ(static_cast<int>(group.size()), expected_size);
    ASSERT_TRUE(std::ranges::is_sorted(group))
        << "the innermost axis varies fastest, so coordinates increase with ranks";
    ASSERT_EQ(std::ranges::count(group, rank), 1);
    for (const int peer : group) {
      ASSERT_EQ(mesh.ranks(peer, axes), group) << "groups partition the world";
      for (const Axis axis : view) {
        if (std::ranges::count(axes, axis) > 0) continue;
        ASSERT_EQ(mesh.coordinate(peer, axis), mesh.coordinate(rank, axis));
      }
    }
  }
}

void check_mesh(const Mesh& mesh) {
  for (const auto& view : kViews) {
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::vector<int> coordinates;
      for (const Axis axis : view) {
        coordinates.push_back(mesh.coordinate(rank, axis));
        ASSERT_GE(coordinates.back(), 0);
        ASSERT_LT(coordinates.back(), mesh.size(axis));
        ASSERT_EQ(mesh.ranks(rank, axis)[static_cast<size_t>(coordinates.back())], rank);
      }
      ASSERT_TRUE(seen.empty() || *seen.rbegin() < coordinates) << "ranks increase with the view's coordinates";
      seen.insert(coordinates);
    }
    for (unsigned mask = 0; mask < 1u << view.size(); ++mask) {
      std::vector<Axis> axes;
      for (size_t i = 0; i < view.size(); ++i)
        if ((mask >> i & 1u) != 0) axes.push_back(view[i]);
      check_groups(mesh, view, axes);
    }
  }
}

TEST(Mesh, GroupsPartitionSmallWorlds) {
  for (const int stage : {1, 2, 3, 4, 6, 8}) {
    for (const int pipeline : {1, 2}) {
      const auto ways = factorisations(stage);
      for (size_t i = 0; i < ways.size(); ++i) {
        const auto &d = ways[i], &e = ways[(i * 7 + 3) % ways.size()];
        const Mesh mesh({.pipeline = pipeline,
                         .replicate = d[0],
                         .shard = d[1],
                         .context = d[2],
                         .tensor = d[3],
                         .expert_replicate = e[0],
                         .expert_shard = e[1],
                         .expert = e[2],
                         .expert_tensor = e[3]});
        ASSERT_EQ(mesh.world_size(), stage * pipeline);
        ASSERT_NO_FATAL_FAILURE(check_mesh(mesh));
      }
    }
  }
}

TEST(Mesh, BothViewsCoverTheSameStage) {
  const Mesh mesh({.pipeline = 2, .replicate = 2, .tensor = 2, .expert = 4});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.ranks(rank, {Axis::replicate, Axis::shard, Axis::context, Axis::tensor}),
              mesh.ranks(rank, {Axis::expert_replicate, Axis::expert_shard, Axis::expert, Axis::expert_tensor}));
    EXPECT_EQ(mesh.coordinate(rank, Axis::pipeline), rank / 4);
  }
  EXPECT_EQ(mesh.ranks(5, Axis::replicate), (std::vector{5, 7}));
  EXPECT_EQ(mesh.ranks(5, Axis::tensor), (std::vector{4, 5}));
  EXPECT_EQ(mesh.ranks(5, Axis::expert), (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(mesh.ranks(5, Axis::pipeline), (std::vector{1, 5}));
  EXPECT_EQ(mesh.ranks(5, Axis::shard), std::vector{5});
}

TEST(Mesh, IgnoresTheOrderOfAxes) {
  const Mesh mesh({.replicate = 2, .shard = 3, .expert = 6});
  EXPECT_EQ(mesh.ranks(4, {Axis::shard, Axis::replicate}), mesh.ranks(4, {Axis::replicate, Axis::shard}));
  EXPECT_EQ(mesh.ranks(4, std::vector<Axis>{}), std::vector{4});
}

TEST(Mesh, ExplainsImpossibleSizes) {
  EXPECT_EQ(message_of<ConfigError>([] { Mesh({.replicate = 2, .expert = 4}); }),
            "mesh: the dense and the expert view must have equally many ranks per pipeline stage, but replicate 2 x "
            "shard 1 x context 1 x "
            "tensor 1 = 2 and expert_replicate 1 x expert_shard 1 x expert 4 x expert_tensor 1 = 4");
  EXPECT_EQ(message_of<ConfigError>([] { Mesh({.tensor = 0}); }), "mesh: axis tensor has size 0; at least 1 is needed");
  EXPECT_THROW(Mesh({.expert = -3}), ConfigError);
  EXPECT_EQ(message_of<ConfigError>([] { Mesh({.replicate = 1 << 20, .shard = 1 << 20, .context = 1 << 20}); }),
            "mesh: axis shard = 1048576 makes more than 16777216 ranks");
}

TEST(Mesh, RefusesInvalidQueries) {
  const Mesh mesh({.replicate = 2, .expert = 2});
  EXPECT_EQ(message_of<ConfigError>([&] { mesh.coordinate(2, Axis::shard); }), "mesh: no rank 2 in a world of 2");
  EXPECT_THROW(mesh.ranks(-1, Axis::shard), ConfigError);
  EXPECT_EQ(message_of<ConfigError>([&] {
              mesh.ranks(0, {Axis::replicate, Axis::expert});
            }),
            "mesh: a group runs along axes of one view; these mix dense and expert axes");
}

}  // namespace
}  // namespace witan
