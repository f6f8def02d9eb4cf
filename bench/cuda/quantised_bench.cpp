// Frozen weights on a GPU, beside the time of what must be read and written (floors.h): decoded to bfloat16, the
// experts of a layer of Qwen3-30B-A3B and one matrix of an MLP of Llama-3-8B; and multiplied by few rows as they are.
// Products rotate through more matrices than the L2 cache holds.
//   cuda_quantised_bench [text that names must contain]
#include "floors.h"
#include "witan/base/numbers/rng.h"
#include "witan/kernels/quantised/quantised.h"

namespace witan {
namespace {

using kernels::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::nf4, WeightFormat::mxfp4, WeightFormat::int4, WeightFormat::fp8};

class Bench : public FloorBench {
 public:
  using FloorBench::FloorBench;

  void decode(std::string_view name, int64_t elements) {
    of_ = name;
    const Tensor out = stream_.empty({elements}, DType::bf16);
    for (const WeightFormat format : kFormats) {
      const kernels::Codes codes = random_codes(format, elements);
      run(cat("decode ", name_of(format)), kernels::bytes_of(codes.words, codes.scales, out), 0,
          [&] { kernels::decode_weights(stream_, codes, out); });
    }
  }
  void multiply(int64_t rows, int64_t N, int64_t K) {
    of_ = cat(rows, " x ", N, " x ", K);
    const double beyond_cache = 2.0 * static_cast<double>(cuda::properties(stream_.device().index).l2);
    const Tensor x = normal({rows, K}), y = stream_.empty({rows, N}, DType::bf16);
    for (const WeightFormat format : kFormats) {
      const auto bytes = static_cast<double>(kernels::traits_of(format).bytes(N * K));
      std::vector<kernels::Codes> sets;
      do sets.push_back(random_codes(format, N * K));
      while (static_cast<double>(sets.size()) * bytes < beyond_cache);
      size_t turn = 0;
      run(cat("multiply ", name_of(format)), bytes + kernels::bytes_of(x, y), 0,
          [&] { kernels::coded_rows(stream_, y, x, sets[turn++ % sets.size()]); });
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
    for (const int64_t rows : {1, 8, 16}) {
      bench.multiply(rows, 14336, 4096);
      bench.multiply(rows, 4096, 14336);
    }
  });
}
