#include "witan/parallel/buffer_sums.h"

#include <gtest/gtest.h>

#include "parallel/parallel_support.h"

namespace witan {
namespace {

using testing::ThreadRank;
using Rule = BufferSpec::Rule;

// The buffers of two modules.
struct Buffers {
  explicit Buffers(Stream& stream) {
    for (const BufferSpec& spec : specs()) {
      owned.push_back(std::make_unique<Buffer>(stream, spec));
      all.push_back(owned.back().get());
    }
  }
  static std::vector<BufferSpec> specs() {
    constexpr auto own = Placement::Uses::own;
    return {{.name = "0.load", .shape = {5}, .dtype = DType::i64, .rule = Rule::summed},
            {.name = "0.bias", .shape = {5}, .initial = 2},
            {.name = "1.load", .shape = {5}, .dtype = DType::i64, .rule = Rule::summed},
            {.name = "1.own", .shape = {2, 2}, .dtype = DType::i64, .rule = Rule::summed, .uses = own},
            {.name = "1.mass", .shape = {3}, .dtype = DType::f64, .rule = Rule::summed},
            {.name = "1.amax", .shape = {2}, .rule = Rule::largest, .uses = own}};
  }
  std::vector<std::unique_ptr<Buffer>> owned;
  std::vector<Buffer*> all;
};

// Every axis along which ranks have different tokens, and one along which they do not.
ParallelConfig every_axis() {
  ParallelConfig config;
  config.tensor_model_parallel_size = 2;
  config.context_parallel_size = 2;
  config.use_distributed_optimizer = true;
  config.num_distributed_optimizer_instances = 2;
  return config;
}

template <class T>
void expect_all(const Tensor& tensor, T value, const std::string& what) {
  for (const T element : tensor.span<T>()) EXPECT_EQ(element, value) << what;
}

// A rank's shares in a step.
void find(const Buffers& buffers, Stream& stream, int64_t count) {
  Tape tape(stream);
  const auto found = [&](const Shape& shape, DType dtype) {
    Tensor tensor = stream.empty(shape, dtype);
    if (dtype == DType::i64)
      std::ranges::fill(tensor.span<int64_t>(), count);
    else
      std::ranges::fill(tensor.span<double>(), static_cast<double>(count));
    return tensor;
  };
  for (const Buffer* buffer : buffers.all)
    if (buffer->spec().rule == Rule::summed) buffer->add(tape, found(buffer->spec().shape, buffer->spec().dtype));
}

TEST(BufferSums, SumOverRanksWithDifferentTokens) {
  const Layout layout(every_axis(), 16, 0);
  testing::on_ranks(16, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout, rank.rank);
    const Buffers buffers(rank.stream);
    const BufferSums sums(rank.stream, buffers.all, groups);
    const Mesh& mesh = layout.mesh();
    const int tensor = mesh.coordinate(rank.rank, Axis::tensor);
    // Tensor-parallel ranks have the same shares, unless each counts different tokens.
    const int64_t share = int64_t{1} << (layout.data_rank(rank.rank) * 2 + mesh.coordinate(rank.rank, Axis::context));
    for (const int64_t step : {1, 10}) {
      sums.begin_step(rank.stream);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) find(buffers, rank.stream, step * share);
      if (tensor == 1)
        for (int64_t& element : buffers.all[3]->share().span<int64_t>()) element *= 1000;
      std::ranges::fill(buffers.all[5]->share().span<float>(), static_cast<float>((step * rank.rank) % 16));
      sums.finish_step(rank.stream);
      const int64_t sum = 2 * step * 0xff;
      expect_all<int64_t>(buffers.all[0]->value(), sum, "0.load");
      expect_all<float>(buffers.all[1]->value(), 2, "0.bias");
      expect_all<int64_t>(buffers.all[2]->value(), sum, "1.load");
      expect_all<int64_t>(buffers.all[3]->value(), sum * 1001, "1.own");
      expect_all<double>(buffers.all[4]->value(), static_cast<double>(sum), "1.mass");
      expect_all<float>(buffers.all[5]->value(), step == 1 ? 15 : 14, "1.amax");
    }
  });
}

// Both loads are reduced together, with as many bytes as separate all-reduces; counts of tensor-parallel ranks' own
// tokens and other dtypes are reduced separately.
TEST(BufferSums, UseOneCallForBuffersSummedByTheSameRanks) {
  testing::Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Layout layout(every_axis(), 16, 0);
  const Groups groups = make_meta_groups(layout, 0);
  const Buffers buffers(meta);
  const BufferSums sums(meta, buffers.all, groups);
  struct Counter : CallObserver {
    void begins(const Group&, const Collective& call, double) override { calls.push_back(describe(call)); }
    std::vector<std::string> calls;
  } counter;
  for (Group* group : groups.all()) group->observe(&counter);
  sums.begin_step(meta);
  EXPECT_TRUE(counter.calls.empty());
  sums.finish_step(meta);
  EXPECT_EQ(counter.calls, (std::vector<std::string>{"all_reduce int64 [10]", "all_reduce int64 [4]",
                                                     "all_reduce float64 [3]", "all_reduce(max) float32 [2]"}));
}

TEST(BufferSums, TakeTheMemoryPlanned) {
  testing::Rank rank;
  const auto high_water = [&](Stream& stream) {
    const Groups groups = make_meta_groups(Layout({}, 1, 0), 0);
    const Buffers buffers(stream);
    const BufferSums sums(stream, buffers.all, groups);
    sums.begin_step(stream);
    sums.finish_step(stream);
    return stream.arena().high_water();
  };
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  EXPECT_EQ(high_water(meta), high_water(rank.stream));
}

TEST(BufferSums, ReleaseBuffersInTheEnd) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(Layout({}, 1, 0), 0);
  const Buffers buffers(rank.stream);
  { const BufferSums sums(rank.stream, buffers.all, groups); }
  for (const Buffer* buffer : buffers.all) EXPECT_FALSE(buffer->share().defined()) << buffer->name();
}

}  // namespace
}  // namespace witan
