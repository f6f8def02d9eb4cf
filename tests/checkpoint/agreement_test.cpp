#include "witan/checkpoint/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_support.h"

namespace witan {
namespace {

using test::message_of;
using test::on_ranks;

TEST(Together, ThrowsTheFirstFailingRanksErrorOnAll) {
  on_ranks(3, [](Group& world, Stream& stream) {
    together(world, stream, [] {});
    EXPECT_EQ(message_of<DiskFullError>([&] {
                together(world, stream, [&] {
                  if (world.rank() == 1) throw DiskFullError("no room");
                  if (world.rank() == 2) throw CheckpointError("later");
                });
              }),
              "no room (rank 1)");
    EXPECT_EQ(message_of<CheckpointError>([&] {
                together(world, stream, [&] {
                  if (world.rank() == 2) throw IoError("cannot read");
                });
              }),
              "cannot read (rank 2)");
    const std::string internal =
        message_of<Error>([&] { together(world, stream, [] { throw std::runtime_error("a bug"); }); });
    EXPECT_EQ(internal, "a bug (rank 0)");
  });
}

TEST(Together, AloneItAddsNothing) {
  on_ranks(1, [](Group& world, Stream& stream) {
    EXPECT_EQ(message_of<CheckpointError>([&] { together(world, stream, [] { throw CheckpointError("it"); }); }), "it");
  });
}

TEST(Texts, TravelWhateverTheirLength) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<size_t>(rank) * 200'003, static_cast<char>('a' + rank));
  };
  on_ranks(4, [&](Group& world, Stream& stream) {
    const auto texts = gather_texts(world, stream, text_of(world.rank()));
    ASSERT_EQ(texts.size(), world.rank() == 0 ? 4U : 0U);
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_TRUE(texts[rank] == text_of(static_cast<int>(rank)));
    for (int root = 0; root < 4; ++root)
      EXPECT_TRUE(broadcast_text(world, stream, text_of(world.rank()), root) == text_of(root));
  });
}

// They travel while a model trains, beside which there is little room.
TEST(Texts, MayBeLongerThanTheArena) {
  const std::string text(size_t{5} << 20, 'x');
  on_ranks(
      2,
      [&](Group& world, Stream& stream) {
        const std::string own = text + std::to_string(world.rank());
        const auto gathered = gather_texts(world, stream, own);
        if (world.rank() == 0) {
          EXPECT_EQ(gathered.size(), 2u);
          EXPECT_TRUE(gathered[0] == text + "0" && gathered[1] == text + "1");
        }
        EXPECT_TRUE(broadcast_text(world, stream, own, 1) == text + "1");
      },
      int64_t{1} << 20);
}

}  // namespace
}  // namespace witan
