// Measures what a training step does on a GPU besides products and attention: routing, moving rows, cross entropy, the
// optimizer. All of it is memory bound: reports bytes over time (each operand counted once as read or written) relative
// to the device's bandwidth.
//   cuda_routing_bench [text that names must contain]
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/common/device_table.h"
#include "witan/kernels/moe/capacity.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

using kernels::bytes_of;

class Bench {
 public:
  Bench(Stream& stream, std::string wanted) : stream_(stream), wanted_(std::move(wanted)) {}

  bool wants(const std::string& name) const { return name.find(wanted_) != std::string::npos; }
  void run(const std::string& name, double bytes, const std::function<void()>& call) {
    if (!wants(name)) return;
    const double seconds = median_seconds(stream_, 0.2, call);
    std::printf("%-52s %9.1f us %7.2f TB/s %5.1f %%\n", name.c_str(), seconds * 1e6, bytes / seconds * 1e-12,
                100 * bytes / seconds / kBandwidth);
    std::fflush(stdout);
  }
  // Normal values, repeated after a million.
  Tensor normal(const Shape& shape, DType dtype, uint64_t number) {
    const Tensor out = stream_.empty(shape, dtype), flat = out.reshape({out.elements()});
    int64_t done = std::min<int64_t>(out.elements(), 1 << 20);
    const Philox rng(1, number);
    dispatch_floating(dtype, [&]<class T>() {
      std::vector<T> some(static_cast<size_t>(done));
      for (size_t i = 0; i < some.size(); ++i) some[i] = T(rng.normal(i));
      stream_.write(flat.narrow(0, 0, done), some.data());
    });
    for (int64_t more; done < out.elements(); done += more) {
      more = std::min(done, out.elements() - done);
      stream_.copy(flat.narrow(0, done, more), flat.narrow(0, 0, more));
    }
    return out;
  }
  Stream& stream() { return stream_; }

 private:
  static constexpr double kBandwidth = 4.3e12;  // of a large copy on an H200; data in the L2 cache is faster
  Stream& stream_;
  std::string wanted_;
};

void router_products(Bench& bench, int64_t T, int64_t E, int64_t D) {
  Stream& s = bench.stream();
  const Tensor x = bench.normal({T, D}, DType::bf16, 1), w = bench.normal({E, D}, DType::f32, 2),
               y = bench.normal({T, E}, DType::f32, 3), dx = s.empty({T, D}, DType::bf16),
               dw = s.zeros({E, D}, DType::f32);
  const std::string sizes = cat(" T ", T, " E ", E, " D ", D);
  bench.run("router product" + sizes, bytes_of(x, w, y), [&] { kernels::wide_linear(s, y, x, w); });
  bench.run("router product's backward, input" + sizes, bytes_of(dx, w, y),
            [&] { kernels::wide_linear_backward_input(s, dx, Write::overwrite, y, w); });
  bench.run("router product's backward, weight" + sizes, bytes_of(x, dw, dw, y),
            [&] { kernels::wide_linear_backward_weight(s, dw, Write::accumulate, y, x); });
}

void routing(Bench& bench, int64_t T, int64_t E, int64_t K, int64_t D) {
  Stream& s = bench.stream();
  const auto integers = [&](const Shape& shape) { return s.empty(shape, DType::i64); };
  const auto floats = [&](const Shape& shape) { return s.empty(shape, DType::f32); };
  const std::string sizes = cat(" T ", T, " E ", E, " K ", K);
  const Tensor logits = bench.normal({T, E}, DType::f32, 1);
  const kernels::RouterOutputs out{s.empty({T, K}, DType::i32),
                                   floats({T, K}),
                                   floats({T, E}),
                                   floats({T}),
                                   integers({E}),
                                   floats({1}),
                                   floats({1}),
                                   floats({1})};
  constexpr auto kScores = kernels::Scores::softmax_of_chosen;
  kernels::router_forward(s, out, logits, kScores);
  bench.run("router forward" + sizes, bytes_of(logits, out.probs, out.ids, out.weights, out.lse),
            [&] { kernels::router_forward(s, out, logits, kScores); });
  const kernels::RouterGradients gradients{bench.normal({T, K}, DType::f32, 2), bench.normal({1}, DType::f32, 3), {}};
  const Tensor dlogits = floats({T, E});
  bench.run("router backward" + sizes, bytes_of(dlogits, out.probs, out.ids, out.weights, gradients.weights),
            [&] { kernels::router_backward(s, dlogits, gradients, out, kScores); });

  const Tensor slot = integers({T * K}), source = integers({T * K});
  kernels::send_order(s, slot, source, out.ids, out.counts);
  bench.run("send order" + sizes, bytes_of(slot, source, out.ids),
            [&] { kernels::send_order(s, slot, source, out.ids, out.counts); });
  const kernels::LocalOrder order{slot, source, {integers({E}), integers({E})}, floats({T * K, 1})};
  bench.run("local order" + sizes, bytes_of(slot, source, out.ids, out.weights, order.row_weights),
            [&] { kernels::local_order(s, order, out.ids, out.counts, out.weights); });
  const kernels::Assignments kept{s.empty({T, K}, DType::i32), integers({E})}, all{out.ids, out.counts};
  bench.run("limit to capacity 1.0" + sizes, 2 * bytes_of(out.ids, source) + bytes_of(out.weights), [&] {
    kernels::limit_to_capacity(s, kept, source, all, out.weights, {T * K / E, DropPolicy::probs});
  });

  kernels::send_order(s, slot, source, out.ids, out.counts);
  const std::string rows = sizes + cat(" D ", D);
  const Tensor x = bench.normal({T, D}, DType::bf16, 4), pool = s.empty({T * K, D}, DType::bf16);
  bench.run("gather rows" + rows, 2 * bytes_of(pool), [&] { kernels::gather_rows(s, pool, x, source, K); });
  bench.run("sum assignments" + rows, bytes_of(pool, x), [&] { kernels::sum_assignments(s, x, pool, slot); });
  const Tensor other = s.empty({T * K, D}, DType::bf16);
  bench.run("gather first rows" + rows, bytes_of(pool, other),
            [&] { kernels::gather_first_rows(s, other, pool, source, out.counts); });
  bench.run("scatter first rows" + rows, bytes_of(pool, other),
            [&] { kernels::scatter_first_rows(s, other, pool, source, out.counts); });
}

void cross_entropy(Bench& bench, int64_t T, int64_t V) {
  if (!bench.wants("cross entropy")) return;
  Stream& s = bench.stream();
  const Tensor logits = bench.normal({T, V}, DType::bf16, 1), weights = s.empty({T}, DType::f32),
               targets = s.empty({T}, DType::i32), loss = s.empty({1}, DType::f32), losses = s.empty({T}, DType::f32),
               lse = s.empty({T}, DType::f32);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < T; ++t) ids.push_back(static_cast<int32_t>(t * 7919 % V));
  s.write(targets, ids.data());
  s.write(weights, std::vector<float>(static_cast<size_t>(T), 1.0F / static_cast<float>(T)).data());
  const std::string sizes = cat(" [", T, ", ", V, "]");
  const auto forward = [&] { kernels::cross_entropy_forward(s, loss, losses, lse, logits, targets, weights, V); };
  bench.run("cross entropy forward" + sizes, bytes_of(logits), forward);
  const Tensor part = s.empty({2, T}, DType::f32), parts = s.zeros({4, 2, T}, DType::f32);
  bench.run("cross entropy part" + sizes, bytes_of(logits), [&] {
    kernels::cross_entropy_part(s, part, logits, targets, weights, {0, V});
  });
  bench.run("cross entropy combine of 4" + sizes, bytes_of(parts, weights, losses, lse),
            [&] { kernels::cross_entropy_combine(s, loss, losses, lse, parts, weights); });
  const Tensor dloss = s.empty({1}, DType::f32);
  const float one = 1;
  s.write(dloss, &one);
  forward();
  bench.run("cross entropy backward in place" + sizes, 2 * bytes_of(logits), [&] {
    kernels::cross_entropy_backward(s, logits, dloss, logits, lse, targets, weights, {0, V});
  });
  bench.run("cross entropy fused in place" + sizes, 2 * bytes_of(logits), [&] {
    kernels::cross_entropy_fused(s, {loss, losses, lse, logits}, logits, targets, weights, V);
  });
}

// `tensors` of equal size, bfloat16 with the remainders of their masters.
void optimizer(Bench& bench, int64_t tensors, int64_t elements, DType gradient) {
  const std::string sizes = cat(" ", tensors, " x ", elements, ", gradients ", gradient);
  if (!bench.wants("adamw" + sizes) && !bench.wants("square sums" + sizes)) return;
  Stream& s = bench.stream();
  std::vector<kernels::UpdateItem> items;
  std::vector<kernels::SquareSumsItem> sums_items;
  const int64_t chunks = kernels::chunks_of(elements);
  for (int64_t i = 0; i < tensors; ++i) {
    const auto half = [&] { return s.zeros({elements}, DType::bf16); };
    const auto wide = [&] { return s.zeros({elements}, DType::f32); };
    items.push_back({{half(), half(), {wide(), wide()}, bench.normal({elements}, gradient, 1)}, 0.1});
    sums_items.push_back({items.back().tensors.gradient.reshape({1, elements}), i * chunks});
  }
  const double count = static_cast<double>(tensors * elements), g = static_cast<double>(size_of(gradient));
  const Tensor step = s.empty({kernels::kStepValues}, DType::f64);
  s.write(step, std::vector<double>{1e-3, 1, 5, 0, 5}.data());
  kernels::DeviceTable table(s, tensors * kernels::kUpdateColumns, MemoryTag::optimizer);
  bench.run("adamw" + sizes, count * (24 + g), [&] {
    kernels::adamw_all(s, items, table.holding(s, kernels::update_table(items)), step, {0.9, 0.95, 1e-8});
  });
  const Tensor sums = s.empty({tensors * chunks, 2}, DType::f64), order = s.empty({tensors * chunks}, DType::i64),
               total = s.empty({2}, DType::f64);
  std::vector<int64_t> in_order(static_cast<size_t>(tensors * chunks));
  for (size_t i = 0; i < in_order.size(); ++i) in_order[i] = static_cast<int64_t>(i);
  s.write(order, in_order.data());
  kernels::DeviceTable sums_table(s, tensors * kernels::kSquareSumsColumns, MemoryTag::workspace);
  bench.run("square sums" + sizes, count * g, [&] {
    kernels::square_sums_all(s, sums, sums_items, sums_table.holding(s, kernels::square_sums_table(sums_items)));
  });
  bench.run(cat("total of ", tensors * chunks, " sums"), bytes_of(sums, order),
            [&] { kernels::total_sums(s, total, sums, order); });
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  using namespace witan;
  if (cuda::devices() == 0) {
    std::printf("%s\n", cuda::why_none().c_str());
    return 0;
  }
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{48} << 30), pool);
  Bench bench(stream, argc > 1 ? argv[1] : "");
  router_products(bench, 16384, 64, 512);
  router_products(bench, 16384, 256, 1024);
  router_products(bench, 32768, 128, 2048);
  router_products(bench, 32768, 256, 4096);
  routing(bench, 16384, 64, 1, 512);
  routing(bench, 32768, 64, 8, 2048);
  routing(bench, 16384, 256, 8, 1024);
  cross_entropy(bench, 16384, 128256);
  cross_entropy(bench, 16384, 64128);  // vocabulary split over two ranks
  optimizer(bench, 4, 500'000'000, DType::bf16);
  optimizer(bench, 300, 5'000'000, DType::bf16);
  optimizer(bench, 4, 250'000'000, DType::f32);
}
