// A layer of short convolutions gives what layers ask of any mixer: gradients, documents that do not see each other,
// generation step by step, and a state that is copied and counted.
#include "witan/nn/short_convolution/short_convolution.h"

#include <array>

#include "nn/mixer/recurrent_support.h"
#include "support/gradcheck.h"
#include "support/module.h"
#include "witan/comm/threads/threads.h"

namespace witan {
namespace {

using testing::attention_builder;
using testing::Rank;
using testing::values;

constexpr int64_t kChannels = 12;

ShortConvolutionSpec convolution_of_three(bool bias = true) {
  ShortConvolutionSpec spec;
  spec.channels = kChannels;
  spec.conv_kernel_dim = 3;
  spec.bias = bias;
  return spec;
}

std::unique_ptr<TokenMixer> make_convolution(Rank& rank, DType dtype = DType::f64, bool bias = true) {
  return convolution_of_three(bias).make(attention_builder(rank, dtype), {.width = kChannels}, {});
}

TEST(ShortConvolutionMixer, GradientsMatchDifferences) {
  Rank rank;
  testing::expect_input_gradients_match_differences(rank, "short convolution", *make_convolution(rank), kChannels);
}

TEST(ShortConvolutionMixer, GradientsOfParametersMatchDifferences) {
  Rank rank;
  for (const bool bias : {true, false})
    testing::expect_parameter_gradients_match_differences(rank, *make_convolution(rank, DType::f64, bias), kChannels);
}

TEST(ShortConvolutionMixer, PackingChangesNoBitOfADocument) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16})
    testing::expect_packing_changes_no_bit(rank, *make_convolution(rank, dtype), kChannels, dtype);
}

TEST(ShortConvolutionMixer, DecodingEqualsTheFullForward) {
  testing::expect_decoding_equals_forward([](Rank& rank, DType dtype) { return make_convolution(rank, dtype); },
                                          kChannels, 1e-2);
}

TEST(ShortConvolutionMixer, RowsAreCopiedAndBeginAnew) {
  Rank rank;
  testing::expect_rows_are_copied_and_restarted(rank, *make_convolution(rank), kChannels,
                                                convolution_of_three().state_bytes({3, 9}, DType::f64).of_row());
}

// Two ranks divide channels: outputs and gradients are those of one rank.
TEST(ShortConvolutionMixer, TensorRanksDivideTheChannels) {
  struct Found {
    std::vector<double> y, dx;
  };
  const auto run = [&](Rank& rank, const Builder& builder) {
    const auto layer = convolution_of_three().make(builder, {.width = kChannels}, {});
    testing::bind_gradients(rank.stream, *layer);
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 8, kChannels}, DType::f64, "x"));
    const Var y = layer->forward(tape, x, testing::packed_documents(rank, {3, 1, 4}));
    tape.backward({{y, rank.normal({1, 8, kChannels}, DType::f64, "dy")}});
    return Found{values(y.value()), values(tape.gradient(x))};
  };
  Rank alone;
  const Found one = run(alone, attention_builder(alone, DType::f64));
  std::array<Found, 2> parts;
  ThreadWorld world(2);
  world.run([&](int number) {
    Rank rank(1);
    const auto group = world.group(number, {0, 1}, "tensor");
    Builder builder = attention_builder(rank, DType::f64);
    builder.tensor.emplace(TensorAxis{*group});
    parts[static_cast<size_t>(number)] = run(rank, builder);
  });
  for (const Found& part : parts) {
    EXPECT_TRUE(testing::close(part.y, one.y, 1e-12, 1e-12));
    EXPECT_TRUE(testing::close(part.dx, one.dx, 1e-12, 1e-12));
  }
}

// Four ranks have chunks of as many tokens as a token reads before it, eight of fewer.
TEST(ShortConvolutionMixer, RanksThatDivideSequencesMatchTheWhole) {
  for (const bool bias : {true, false})
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-4}, std::pair{DType::bf16, 5e-2}}) {
      const auto make = [&](Rank& rank, const ContextAxis& context) {
        return convolution_of_three(bias).make(attention_builder(rank, dtype), {.width = kChannels}, context);
      };
      testing::expect_divided_sequences_match_the_whole(make, {2, 4, 8}, kChannels, dtype, tolerance);
    }
}

}  // namespace
}  // namespace witan
