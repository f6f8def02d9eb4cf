// Decoding frozen weights on a GPU to bfloat16, beside the time of reading the codes and writing the values (floors.h):
// the experts of a layer of Qwen3-30B-A3B and one matrix of an MLP of Llama-3-8B.
//   cuda_decode_weights_bench [text that names must contain]
#include "floors.h"
#include "witan/base/numbers/rng.h"
#include "witan/kernels/quantised/quantised.h"

namespace witan {
namespace {

using kernels::WeightFormat;

class Bench : public FloorBench {
 public:
  using FloorBench::FloorBench;

  void decode(std::string_view name, int64_t elements) {
    of_ = name;
    const Tensor out = stream_.empty({elements}, DType::bf16);
    for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::mxfp4, WeightFormat::int4, WeightFormat::fp8}) {
      const kernels::Codes codes = random_codes(format, elements);
      run(name_of(format), kernels::bytes_of(codes.words, codes.scales, out), 0,
          [&] { kernels::decode_weights(stream_, codes, out); });
    }
  }

 private:
  // Random words, a million of them repeated.
  kernels::Codes random_codes(WeightFormat format, int64_t elements) {
    const kernels::WeightFormatTraits& traits = kernels::traits_of(format);
    kernels::Codes codes{format, stream_.empty({traits.words(elements)}, DType::i32),
                         stream_.empty({traits.numbers(elements)}, traits.scale)};
    std::vector<int32_t> drawn(size_t{1} << 20);
    const Philox rng(1, 2);
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = static_cast<int32_t>(rng.uniform(i) * 0x1p32 - 0x1p31);
    for (int64_t done = 0, more = 0; done < codes.words.elements(); done += more) {
      more = std::min(codes.words.elements() - done, std::ssize(drawn));
      stream_.write(codes.words.narrow(0, done, more), drawn.data());
    }
    fill_normal(stream_, codes.scales, 1, 0.02);
    return codes;
  }
};

}  // namespace
}  // namespace witan

int main(int count, char** words) {
  return witan::run_floor_bench(count, words, [](witan::Stream& stream, std::string_view wanted) {
    witan::Bench bench(stream, wanted);
    bench.decode("experts, 128 x 3 x 2048 x 768", int64_t{128} * 3 * 2048 * 768);
    bench.decode("MLP, 14336 x 4096", int64_t{14336} * 4096);
  });
}
