// Tests loading under other layouts than the one that saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_support.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace test;

class Layouts : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Layouts, LoadOnAnyNumberOfRanks) {
  const auto [writers, readers] = GetParam();
  const TempFolder folder;
  const fs::path saved = save_model(folder.path(), 9, writers);
  on_ranks(readers, [&](Group& world, Stream& stream) {
    const Checkpoint checkpoint = open_checkpoint(saved);
    const auto state = blank_state(stream, world.rank(), world.size());
    load_tensors(world, stream, checkpoint, state);
    expect_equal(state, model_state(stream, world.rank(), world.size(), 9));
    const auto alone = blank_state(stream, world.rank(), world.size());
    load_tensors(checkpoint, alone);
    expect_equal(alone, state);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Layouts,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8), ::testing::Values(1, 2, 3, 4, 8)));

TEST(Load, SavesTheSameBytesAfterOneTwoFourAndOneRanks) {
  const TempFolder folder;
  fs::path from = save_model(folder.path(), 1, 1);
  const std::string first = read_file(from / "shard-00000.safetensors");
  for (const auto& [step, ranks] : {std::pair{2, 2}, std::pair{3, 4}, std::pair{4, 1}}) {
    on_ranks(ranks, [&](Group& world, Stream& stream) {
      CheckpointContent content{step, blank_state(stream, world.rank(), world.size()), Json::object(), {}};
      load_tensors(world, stream, open_checkpoint(from), content.tensors);
      save_checkpoint(world, stream, folder.path(), content);
    });
    from = folder / step_folder_name(step);
  }
  EXPECT_EQ(read_file(from / "shard-00000.safetensors"), first);
}

TEST(Load, ReadsOnlyTheShardsItNeeds) {
  const TempFolder folder;
  const fs::path saved = save_model(folder.path(), 9, 4);
  std::string bytes = read_file(saved / "shard-00003.safetensors");
  bytes.back() ^= 1;
  put(saved / "shard-00003.safetensors", bytes);
  const Checkpoint checkpoint = open_checkpoint(saved);
  testing::Rank rank(1, 1 << 20);
  load_tensors(checkpoint, {counted<bf16>(rank.stream, "layers.0.experts.up_proj", {7, 2, 3}, 0, 6, 0)}, Extra::allow);
  const auto needs = counted<bf16>(rank.stream, "layers.0.experts.up_proj", {7, 2, 3}, 4, 3, 0);
  const std::string before = bytes_of(needs.local);
  EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(checkpoint, {needs}, Extra::allow); }),
              AllOf(HasSubstr("shard-00003.safetensors is damaged: its XXH3-128 is"), HasSubstr("restore the file")));
  EXPECT_EQ(bytes_of(needs.local), before) << "an error left half of the values";
}

// A part of a global tensor whose element i is i.
StateTensor part_of(Stream& stream, const Shape& global, const Region& region) {
  const Tensor local = stream.empty({region.elements()}, DType::f64);
  for (int64_t i = 0; i < region.elements(); ++i) local.data<double>()[i] = static_cast<double>(region.global(i));
  return {"w", local, global, region};
}

// Tensors are saved as columns, halves of blocks of rows, or flat slices of them. Each can be loaded as any other of
// these, in pieces, from files over which it is scattered.
TEST(Load, ConvertsBetweenAllTestedSplits) {
  const Shape global = {600, 4000};  // several of the pieces that are gathered on the host
  const int64_t all = global.elements();
  const std::vector<std::function<std::vector<Region>(int rank)>> cuts = {
      [&](int rank) { return std::vector{Region(0, all).divided(4000, 2, rank)}; },
      [&](int rank) { return std::vector{Region(0, all).divided(300 * 4000, 2, rank)}; },
      [&](int rank) { return std::vector{rows_of(global, rank * 300, 300)}; },
      [&](int rank) {  // the parts of owners 0 and 1 of columns, which end within a row
        const Region columns = Region(0, all).divided(4000, 2, rank);
        auto slices = columns.slice(0, 777'777);
        for (const Region& rest : columns.slice(777'777, columns.elements())) slices.push_back(rest);
        return slices;
      }};
  for (size_t from = 0; from < cuts.size(); ++from) {
    const TempFolder folder;
    on_ranks(
        2,
        [&](Group& world, Stream& stream) {
          CheckpointContent content{1, {}, Json::object(), {}};
          for (const Region& region : cuts[from](world.rank()))
            content.tensors.push_back(part_of(stream, global, region));
          const fs::path saved = save_checkpoint(world, stream, folder.path(), content);
          for (size_t to = 0; to < cuts.size(); ++to)
            for (const Region& region : cuts[to](world.rank())) {
              const StateTensor expected = part_of(stream, global, region);
              StateTensor found = expected;
              found.local = stream.zeros(expected.local.shape(), DType::f64);
              load_tensors(open_checkpoint(saved), {found});
              EXPECT_EQ(bytes_of(found.local), bytes_of(expected.local)) << from << " to " << to << ", " << region;
            }
        },
        int64_t{1} << 27);
  }
}

TEST(Load, ErrorsNameTheTensorAndTheMismatch) {
  const TempFolder folder;
  const Checkpoint checkpoint = open_checkpoint(save_model(folder.path(), 9, 2));
  testing::Rank rank(1, 1 << 20);
  Stream& stream = rank.stream;
  const auto error = [&](const StateTensor& state) {
    return message_of<CheckpointError>([&] { load_tensors(checkpoint, {state}, Extra::allow); });
  };
  EXPECT_THAT(error(counted<float>(stream, "absent", {1}, 0, 1, 0)),
              AllOf(HasSubstr("holds no tensor \"absent\""), HasSubstr("the configuration that it was saved with")));
  EXPECT_THAT(error(counted<float>(stream, "embedding.weight", {6, 3}, 0, 6, 0)),
              HasSubstr("\"embedding.weight\" is float32 [5, 3], the model expects float32 [6, 3]"));
  EXPECT_THAT(error(counted<double>(stream, "embedding.weight", {5, 3}, 0, 5, 0)),
              HasSubstr("is float32 [5, 3], the model expects float64 [5, 3]"));
  StateTensor strided = counted<float>(stream, "embedding.weight", {5, 3}, 0, 5, 0);
  strided.local = stream.empty({3, 5}, DType::f32).transpose(0, 1);
  EXPECT_THAT(message_of<ShapeError>([&] { load_tensors(checkpoint, {strided}, Extra::allow); }),
              HasSubstr("must be a contiguous tensor"));
  StateTensor outside = counted<float>(stream, "embedding.weight", {5, 3}, 0, 3, 0);
  outside.region = Region(9, 9);
  EXPECT_THAT(message_of<ShapeError>([&] { load_tensors(checkpoint, {outside}, Extra::allow); }),
              HasSubstr("[3, 3] does not hold elements [9, 18) of the global [5, 3]"));
}

TEST(Load, RefusesUnusedTensorsUnlessAllowed) {
  const TempFolder folder;
  const fs::path saved = save_model(folder.path(), 9, 2);
  on_ranks(2, [&](Group& world, Stream& stream) {
    const Checkpoint checkpoint = open_checkpoint(saved);
    auto state = blank_state(stream, world.rank(), 2);
    auto half = state;  // rank 0 asks for the optimizer's rows of all, rank 1 for the rest: together for everything
    if (world.rank() == 0) half.erase(half.begin() + 3, half.end());
    if (world.rank() == 1) half.erase(half.begin(), half.begin() + 3);
    load_tensors(world, stream, checkpoint, half);
    state.erase(state.begin() + 2);
    const std::string message = message_of<CheckpointError>([&] { load_tensors(world, stream, checkpoint, state); });
    EXPECT_THAT(message,
                HasSubstr("holds 1 tensors that this run does not use (the first is \"adam.m/embedding.weight\")"));
    EXPECT_EQ(message_of<CheckpointError>([&] { load_tensors(checkpoint, state); }) + " (rank 0)", message);
    load_tensors(world, stream, checkpoint, state, Extra::allow);
  });
}

// A resumed run may keep its moments in another dtype than the saved one.
TEST(Load, ConvertsDtypesOfOptimizerStateOnly) {
  const TempFolder folder;
  const auto moment = [&]<class T>(Stream& stream, int rank, int size, T, int salt) {
    const auto [first, rows] = share(5, rank, size);
    StateTensor tensor = counted<T>(stream, "adam.m/p", {5, 3}, first, rows, salt);
    tensor.kind = StateTensor::Kind::optimizer;
    return tensor;
  };
  fs::path saved;
  const auto save = [&](int ranks, auto like, int64_t step) {
    on_ranks(ranks, [&](Group& world, Stream& stream) {
      const fs::path path =
          save_checkpoint(world, stream, folder.path(),
                          {step, {moment(stream, world.rank(), world.size(), like, 1000)}, Json::object(), {}});
      if (world.rank() == 0) saved = path;
    });
  };
  save(3, float(), 1);  // 1000 to 1014, of which bfloat16 represents every fourth
  on_ranks(2, [&](Group& world, Stream& stream) {
    const StateTensor narrow = moment(stream, world.rank(), 2, bf16(0.0f), 0);
    load_tensors(world, stream, open_checkpoint(saved), {narrow});
    EXPECT_EQ(bytes_of(narrow.local), bytes_of(moment(stream, world.rank(), 2, bf16(0.0f), 1000).local));
    StateTensor value = narrow;
    value.kind = StateTensor::Kind::value;
    EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(open_checkpoint(saved), {value}); }),
                HasSubstr("the model expects bfloat16"));
  });
  save(1, bf16(0.0f), 2);
  on_ranks(2, [&](Group& world, Stream& stream) {
    const StateTensor wide = moment(stream, world.rank(), 2, 0.0f, 0);
    load_tensors(world, stream, open_checkpoint(saved), {wide});
    const StateTensor expected = moment(stream, world.rank(), 2, bf16(0.0f), 1000);
    for (int64_t i = 0; i < wide.local.elements(); ++i)
      EXPECT_EQ(wide.local.data<float>()[i], static_cast<float>(expected.local.data<bf16>()[i]));
  });
}

// Pipeline stages that each have buffers of their own.
StateTensor buffer_of(Stream& stream, int rank, int salt) {
  StateTensor buffer = counted<float>(stream, cat("layers.", rank, ".router.bias"), {4}, 0, 4, salt);
  buffer.kind = StateTensor::Kind::buffer;
  return buffer;
}

TEST(Load, KeepsBuffersMissingInTheCheckpoint) {
  const TempFolder folder;
  const fs::path saved = save_model(folder.path(), 9, 2);
  on_ranks(2, [&](Group& world, Stream& stream) {
    const Checkpoint checkpoint = open_checkpoint(saved);
    auto state = blank_state(stream, world.rank(), 2);
    const StateTensor buffer = buffer_of(stream, world.rank(), 7);
    const std::string before = bytes_of(buffer.local);
    state.insert(state.begin() + 1, buffer);
    const auto lacking = load_tensors(world, stream, checkpoint, state);
    EXPECT_EQ(lacking, world.rank() == 0 ? (std::vector<std::string>{"layers.0.router.bias", "layers.1.router.bias"})
                                         : std::vector<std::string>());
    EXPECT_EQ(bytes_of(buffer.local), before);
    state.erase(state.begin() + 1);
    expect_equal(state, model_state(stream, world.rank(), 2, 9));
    EXPECT_EQ(load_tensors(checkpoint, {buffer}, Extra::allow),
              (std::vector<std::string>{cat("layers.", world.rank(), ".router.bias")}));
  });
}

TEST(Load, ErrorsNameBuffersTheModelLacks) {
  const TempFolder folder;
  on_ranks(2, [&](Group& world, Stream& stream) {
    CheckpointContent content{1, model_state(stream, world.rank(), 2, 9), Json::object(), {}};
    content.tensors.push_back(buffer_of(stream, world.rank(), 7));
    const Checkpoint checkpoint = open_checkpoint(save_checkpoint(world, stream, folder.path(), content));

    auto state = blank_state(stream, world.rank(), 2);
    state.push_back(buffer_of(stream, world.rank(), 0));
    EXPECT_EQ(load_tensors(world, stream, checkpoint, state), std::vector<std::string>());
    expect_equal(state, content.tensors);

    for (const Extra extra : {Extra::refuse, Extra::allow}) {
      std::vector<StateTensor> one = state;
      if (world.rank() == 1) one.pop_back();
      EXPECT_THAT(
          message_of<CheckpointError>([&] { load_tensors(world, stream, checkpoint, one, extra); }),
          HasSubstr("step-1 holds buffers that this model does not have: \"layers.1.router.bias\"; load it with the"));
      one.erase(one.begin() + 6, one.end());
      EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(checkpoint, one, extra); }),
                  HasSubstr("does not have: \"layers.0.router.bias\", \"layers.1.router.bias\"; load it"));
    }
  });
}

TEST(Load, ThrowsTheErrorOfOneRankOnAll) {
  const TempFolder folder;
  const fs::path saved = save_model(folder.path(), 9, 2);
  on_ranks(3, [&](Group& world, Stream& stream) {
    auto state = blank_state(stream, world.rank(), 3);
    if (world.rank() == 2) state[0].name = "embedding.wait";
    EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(world, stream, open_checkpoint(saved), state); }),
                AllOf(HasSubstr("holds no tensor \"embedding.wait\""), HasSubstr("(rank 2)")));
  });
}

TEST(Load, RefusesManifestsWithPartsTheShardLacks) {
  const TempFolder folder;
  Checkpoint checkpoint = open_checkpoint(save_model(folder.path(), 9, 2));
  checkpoint.manifest.tensors.at("embedding.weight").parts[0].shard = 1;
  testing::Rank rank(1, 1 << 20);
  EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(checkpoint, blank_state(rank.stream, 0, 1)); }),
              HasSubstr("shard-00001.safetensors: the manifest expects \"embedding.weight\", float32 [5, 3]"));
}

}  // namespace
}  // namespace witan
