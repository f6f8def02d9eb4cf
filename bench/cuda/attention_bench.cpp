// Attention on a GPU with cuDNN and with our own kernels: the shapes of the reference model; those of cuDNN's published
// results (H200, head dim 128, 64 query heads, 8 key heads: 484 and 370 TFLOP/s forward and backward at 2k tokens, 591
// and 474 at 4k, 644 and 541 at 8k); packed documents and dropout, which only our own kernels support; a sliding
// window; the head dims of latent attention; rotary embeddings of the reference model; and single tokens that read a
// cache, as in batch-invariant generation. FLOP/s count the causal half, or its part in the window, as in
// kernels/attention/cost.cpp.
//   cuda_attention_bench [text that names must contain]
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/cuda/attention_backend.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/attention/rope.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

namespace own = kernels::cuda::own;
namespace cudnn = kernels::cuda::cudnn;

// Normal values, repeated after a million.
Tensor normal(Stream& stream, const Shape& shape, DType dtype, uint64_t number) {
  const Tensor out = stream.empty(shape, dtype), flat = out.reshape({out.elements()});
  int64_t done = std::min<int64_t>(out.elements(), 1 << 20);
  const Philox rng(1, number);
  dispatch_floating(dtype, [&]<class T>() {
    std::vector<T> some(static_cast<size_t>(done));
    for (size_t i = 0; i < some.size(); ++i) some[i] = T(rng.normal(i));
    stream.write(flat.narrow(0, 0, done), some.data());
  });
  for (int64_t more; done < out.elements(); done += more) {
    more = std::min(done, out.elements() - done);
    stream.copy(flat.narrow(0, done, more), flat.narrow(0, 0, more));
  }
  return out;
}

struct Setting {
  std::string name;
  int64_t B, S, H, G, hd;
  DType dtype = DType::bf16;
  int64_t document = 0;  // document length; 0: rows are whole sequences
  double dropout = 0;
  int64_t window = 0;
  int64_t hd_v = hd;
  bool repeatable = false;  // deterministic backward
};

std::vector<Setting> settings() {
  return {{"reference", 8, 2048, 4, 1, 128},
          {"reference, documents of 512", 8, 2048, 4, 1, 128, DType::bf16, 512},
          {"reference, dropout", 8, 2048, 4, 1, 128, DType::bf16, 0, 0.1},
          {"reference, float32", 8, 2048, 4, 1, 128, DType::f32},
          {"2k", 8, 2048, 64, 8, 128},
          {"4k", 4, 4096, 64, 8, 128},
          {"8k", 2, 8192, 64, 8, 128},
          {"16k, 4 of 32 heads", 1, 16384, 32, 4, 128},
          {"32k, 4 of 32 heads", 1, 32768, 32, 4, 128},
          {"64k, 4 of 32 heads", 1, 65536, 32, 4, 128},
          {"128k, 4 of 32 heads", 1, 131072, 32, 4, 128},
          {"128k, 1 of 4 heads", 1, 131072, 4, 1, 128},
          {"256k, 1 of 8 heads", 1, 262144, 8, 1, 128},
          {.name = "8k, repeatable", .B = 1, .S = 8192, .H = 32, .G = 4, .hd = 128, .repeatable = true},
          {.name = "16k, repeatable", .B = 1, .S = 16384, .H = 32, .G = 4, .hd = 128, .repeatable = true},
          {"2k, heads of 64", 8, 2048, 64, 8, 64},
          {"2k, heads of 256", 8, 2048, 16, 4, 256},
          {.name = "8k, window of 1k", .B = 2, .S = 8192, .H = 64, .G = 8, .hd = 128, .window = 1024},
          {.name = "4k, heads of 192 and 128", .B = 4, .S = 4096, .H = 16, .G = 16, .hd = 192, .hd_v = 128}};
}

kernels::AttentionInputs inputs_of(Stream& stream, const Setting& s) {
  kernels::AttentionInputs in{
      normal(stream, {s.B, s.S, s.H, s.hd}, s.dtype, 1), normal(stream, {s.B, s.S, s.G, s.hd}, s.dtype, 2),
      normal(stream, {s.B, s.S, s.G, s.hd_v}, s.dtype, 3), Tensor(), 1 / std::sqrt(static_cast<double>(s.hd))};
  in.window = s.window;
  in.hints.repeatable = s.repeatable;
  if (s.document > 0) {
    std::vector<int32_t> ids(static_cast<size_t>(s.B * s.S));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) % s.S / s.document);
    in.sequence_ids = stream.empty({s.B, s.S}, DType::i32);
    stream.write(in.sequence_ids, ids.data());
  }
  if (s.dropout > 0) in.dropout = {.p = s.dropout, .seed = 1, .step = stream.zeros({kernels::kStepValues}, DType::f64)};
  return in;
}

void print(const std::string& name, const char* what, const std::string& by, double seconds, double flops) {
  std::printf("%-30s %-9s %-14s %9.3f ms %7.1f TFLOP/s\n", name.c_str(), what, by.c_str(), seconds * 1e3,
              flops / seconds * 1e-12);
  std::fflush(stdout);
}

void attention(Stream& stream, const Setting& s) {
  const kernels::AttentionInputs in = inputs_of(stream, s);
  const DType sums = accumulator(s.dtype);
  const Shape results = in.q.shape().with(3, s.hd_v);
  const Tensor y = stream.empty(results, s.dtype), lse = stream.empty({s.B, s.H, s.S}, sums);
  const Tensor dy = normal(stream, results, s.dtype, 4);
  const kernels::AttentionGradients to{stream.empty_like(in.q), stream.empty_like(in.k), stream.empty_like(in.v)};
  const double length = static_cast<double>(s.document > 0 ? s.document : s.S);
  const double window = s.window > 0 ? std::min(static_cast<double>(s.window), length) : length;  // per document
  const double pairs = static_cast<double>(s.B * s.H * s.S) * (length * window - window * (window - 1) / 2) / length;
  const double hd = static_cast<double>(s.hd), hd_v = static_cast<double>(s.hd_v);
  const double forward = 2 * pairs * (hd + hd_v), backward = 2 * pairs * (3 * hd + 2 * hd_v);
  constexpr double kLong = 1e14;  // FLOP per call that take our own kernels seconds
  if (backward < kLong) {
    own::attention_forward(stream, y, lse, in);
    print(s.name, "forward", "witan", median_seconds(stream, 0.1, [&] { own::attention_forward(stream, y, lse, in); }),
          forward);
    print(s.name, "backward", "witan",
          median_seconds(stream, 0.1, [&] { own::attention_backward(stream, to, dy, y, lse, in); }), backward);
  }
  if (!cudnn::has_attention(stream, in)) return;
  const std::string by = kernels::cuda::attention_backend(stream, in);
  print(s.name, "forward", by, median_seconds(stream, 0.1, [&] { kernels::attention_forward(stream, y, lse, in); }),
        forward);
  print(s.name, "backward", by,
        median_seconds(stream, 0.1, [&] { kernels::attention_backward(stream, to, dy, y, lse, in); }), backward);
}

void rope(Stream& stream, int64_t heads) {
  const int64_t T = 16384, hd = 128;
  const Tensor x = normal(stream, {1, T, heads, hd}, DType::bf16, 1), y = stream.empty_like(x);
  const Tensor table = stream.empty({T, hd}, DType::f32), positions = stream.empty({1, T}, DType::i32);
  std::vector<int32_t> at(static_cast<size_t>(T));
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(i % 2048);
  stream.write(positions, at.data());
  const kernels::RopeArgs args{.base = 10000, .dims = hd};
  const double seconds = median_seconds(stream, 0.1, [&] { kernels::rope(stream, y, table, x, positions, args); });
  std::printf("rope [16384, %2lld, 128] %38.1f us %7.2f TB/s\n", static_cast<long long>(heads), seconds * 1e6,
              2 * static_cast<double>(x.bytes()) / seconds * 1e-12);
}

// One token of each text, after `keys` others.
void tokens(Stream& stream, int64_t texts, int64_t keys, bool batch_invariant) {
  const int64_t H = 32, G = 4, hd = 128;
  const Tensor q = normal(stream, {texts, 1, H, hd}, DType::bf16, 1), y = stream.empty_like(q);
  const Tensor k = normal(stream, {texts, keys, G, hd}, DType::bf16, 2), v = stream.empty_like(k);
  stream.copy(v, k);
  std::vector<int32_t> rows, positions;
  kernels::CachedInputs in{q, k, v, {}, 1 / std::sqrt(static_cast<double>(hd)), 0, batch_invariant};
  for (int64_t text = 0; text < texts; ++text) {
    rows.push_back(static_cast<int32_t>(text)), positions.push_back(static_cast<int32_t>(keys - 1));
    in.tokens.runs.push_back({text, keys - 1, 1});
  }
  for (Tensor* tensor : {&in.tokens.rows, &in.tokens.positions}) *tensor = stream.empty({texts}, DType::i32);
  stream.write(in.tokens.rows, rows.data());
  stream.write(in.tokens.positions, positions.data());
  const double seconds = median_seconds(stream, 0.1, [&] { kernels::cached_attention(stream, y, {}, in); });
  std::printf("%3lld tokens, %5lld keys, 32 heads of 4%-17s %9.1f us %7.2f TB/s\n", static_cast<long long>(texts),
              static_cast<long long>(keys), batch_invariant ? ", invariant" : "", seconds * 1e6,
              2 * static_cast<double>(k.bytes()) / seconds * 1e-12);
}

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{16} << 30), pool);
  std::printf("%s, cuDNN: %s\n", cuda::properties(0).name.c_str(),
              cudnn::version().empty() ? cudnn::why_none().c_str() : cudnn::version().c_str());
  for (const Setting& s : settings())
    if (s.name.find(wanted) != std::string::npos) attention(stream, s);
  for (const int64_t heads : {1, 4, 64})
    if (std::string("rope").find(wanted) != std::string::npos) rope(stream, heads);
  if (std::string("tokens").find(wanted) == std::string::npos) return;
  for (const int64_t texts : {1, 8, 32})
    for (const int64_t keys : {1024, 8192})
      for (const bool batch_invariant : {false, true}) tokens(stream, texts, keys, batch_invariant);
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  if (witan::cuda::devices() == 0) {
    std::fprintf(stderr, "%s\n", witan::cuda::why_none().c_str());
    return static_cast<int>(witan::ExitCode::device);
  }
  witan::run(argc > 1 ? argv[1] : "");
}
