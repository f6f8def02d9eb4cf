// The CUDA kernels of compressed attention agree with the CPU's, and packing changes no bit of a document on a GPU.
#include "witan/kernels/attention/compressed_attention.h"

#include <cmath>

#include "support/cuda_rank.h"
#include "witan/kernels/attention/sparse_attention.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr int64_t kRows = 2, kTokens = 150;

struct Sizes {
  int64_t heads, channels, window, m;
  bool overlap;
  int64_t topk;  // 0: all entries
};
constexpr Sizes kSizes[] = {{3, 40, 7, 4, true, 5},
                            {5, 512, 128, 16, false, 0},
                            {4, 64, 20, 1, true, 0},
                            {2, 33, 300, 200, false, 0},
                            {6, 96, 1, 5, true, 1000}};

// Documents of several lengths, and padding at the end of the second row.
std::vector<int32_t> document_ids() {
  std::vector<int32_t> ids;
  const auto add = [&](int64_t length, int32_t id) { ids.insert(ids.end(), static_cast<size_t>(length), id); };
  for (const int64_t length : {1, 70, 3, 76}) add(length, static_cast<int32_t>(ids.size()));
  for (const int64_t length : {129, 14}) add(length, static_cast<int32_t>(ids.size()));
  add(7, -1);
  return ids;
}

class CompressedTwins : public CudaTest {
 protected:
  // Equal values on both devices.
  struct Pair {
    Tensor cpu, gpu;
  };
  struct Places {
    kernels::SequencePlaces tokens;
    kernels::EntryPlaces entries;
  };
  Pair both(const Tensor& cpu) { return {cpu, cpu.defined() ? to_gpu(cpu) : Tensor()}; }
  Pair values_of(const Shape& shape, DType dtype, std::string_view name) {
    return both(host.normal(shape, dtype, name));
  }
  Pair output(const Shape& shape, DType dtype) { return {host.poisoned(shape, dtype), poisoned(shape, dtype)}; }
  void expect_equal_ints(const Tensor& cpu, const Tensor& gpu, const char* what, int64_t m) {
    EXPECT_EQ(to_host(gpu).to_vector<int32_t>(), cpu.to_vector<int32_t>()) << what << " " << m;
  }
  void expect_close(const Pair& pair, DType dtype, const char* what, double scale = 1) {
    const double allowed = scale * tolerance(dtype);
    EXPECT_TRUE(agree(pair.gpu, pair.cpu, allowed, allowed)) << what << " " << dtype << pair.cpu.shape();
  }
  // Entries that a token does not see have scores of minus infinity.
  void expect_close_scores(const Pair& pair) {
    const auto expected = values(pair.cpu), found = values(to_host(pair.gpu));
    const double allowed = 10 * tolerance(pair.cpu.dtype());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isinf(expected[i])) {
        ASSERT_EQ(found[i], expected[i]) << i;
      } else {
        ASSERT_NEAR(found[i], expected[i], allowed * (1 + std::abs(expected[i]))) << i;
      }
    }
  }
  static Places places_on(Stream& stream, const Tensor& ids, const Tensor& turns, int64_t m) {
    const int64_t B = ids.size(0), S = ids.size(1), E = kernels::entry_slots(S, m);
    const auto ints = [&](const Shape& shape) { return stream.empty(shape, DType::i32); };
    Places places{{ints({B * S}), ints({B * S}), ints({B * S})}, {ints({B, E}), ints({B, E}), ints({B, E})}};
    kernels::sequence_places(stream, places.tokens, ids, S);
    kernels::entry_places(stream, places.entries, places.tokens, turns, m);
    return places;
  }
};

TEST_F(CompressedTwins, Places) {
  const Pair ids = both(host.tensor(Shape{kRows, kTokens}, document_ids()));
  for (const int64_t m : {1, 4, 200}) {
    const Places cpu = places_on(host.stream, ids.cpu, ids.cpu, m), gpu_ = places_on(gpu(), ids.gpu, ids.gpu, m);
    expect_equal_ints(cpu.tokens.rows, gpu_.tokens.rows, "rows", m);
    expect_equal_ints(cpu.tokens.begins, gpu_.tokens.begins, "begins", m);
    expect_equal_ints(cpu.tokens.positions, gpu_.tokens.positions, "positions", m);
    expect_equal_ints(cpu.entries.slots, gpu_.entries.slots, "slots", m);
    expect_equal_ints(cpu.entries.positions, gpu_.entries.positions, "positions of entries", m);
    expect_equal_ints(cpu.entries.turns, gpu_.entries.turns, "turns", m);
  }
}

TEST_F(CompressedTwins, AttendAndTheirGradients) {
  const Pair ids = both(host.tensor(Shape{kRows, kTokens}, document_ids()));
  const int64_t T = kRows * kTokens;
  for (const DType dtype : kDTypes)
    for (const Sizes& size : kSizes) {
      const DType wide = accumulator(dtype);
      const int64_t d = size.channels, N = size.heads, wd = d * (size.overlap ? 2 : 1),
                    E = kernels::entry_slots(kTokens, size.m);
      const Places cpu = places_on(host.stream, ids.cpu, ids.cpu, size.m),
                   on_gpu = places_on(gpu(), ids.gpu, ids.gpu, size.m);
      const Pair kv = values_of({T, wd}, dtype, "kv"), gate = values_of({T, wd}, dtype, "gate"),
                 bias = values_of({size.m, wd}, wide, "bias");
      const Pair entries = output({kRows, E, d}, dtype);
      const kernels::EntryInputs of_cpu{kv.cpu, gate.cpu, bias.cpu, size.overlap},
          of_gpu{kv.gpu, gate.gpu, bias.gpu, size.overlap};
      kernels::make_entries(host.stream, entries.cpu, of_cpu, cpu.entries);
      kernels::make_entries(gpu(), entries.gpu, of_gpu, on_gpu.entries);
      expect_close(entries, dtype, "entries", 2);
      const Pair g = values_of({kRows, E, d}, dtype, "g");
      const Pair dkv = output({T, wd}, dtype), dgate = output({T, wd}, dtype), dbias = output({size.m, wd}, wide);
      kernels::make_entries_backward(host.stream, {dkv.cpu, dgate.cpu, dbias.cpu}, g.cpu, of_cpu, cpu.tokens,
                                     cpu.entries);
      kernels::make_entries_backward(gpu(), {dkv.gpu, dgate.gpu, dbias.gpu}, g.gpu, of_gpu, on_gpu.tokens,
                                     on_gpu.entries);
      expect_close(dkv, dtype, "dkv", 2);
      expect_close(dgate, dtype, "dgate", 4);
      expect_close(dbias, dtype, "dbias", 10);  // a GPU adds up rounded gradients

      Pair chosen;
      if (size.topk > 0) {
        const Pair q = values_of({T, 3, 8}, dtype, "index q"), w = values_of({T, 3}, dtype, "w"),
                   k = values_of({kRows, E, 8}, dtype, "index k");
        const Pair scores = output({T, E}, wide);
        kernels::entry_scores(host.stream, scores.cpu, q.cpu, w.cpu, k.cpu, cpu.tokens, size.m, 0.3);
        kernels::entry_scores(gpu(), scores.gpu, q.gpu, w.gpu, k.gpu, on_gpu.tokens, size.m, 0.3);
        expect_close_scores(scores);
        chosen = both(host.stream.empty({T, std::min(size.topk, E)}, DType::i32));
        kernels::choose_keys(host.stream, chosen.cpu, scores.cpu);
        chosen.gpu = to_gpu(chosen.cpu);
      }
      const Pair q = values_of({T, N, d}, dtype, "q"), keys = values_of({kRows, kTokens, d}, dtype, "keys"),
                 sinks = values_of({N}, dtype, "sinks"), dy = values_of({T, N, d}, dtype, "dy");
      const double scale = 0.5 / std::sqrt(static_cast<double>(d));
      const kernels::CompressedInputs from_cpu{q.cpu,      keys.cpu,    sinks.cpu, entries.cpu, chosen.cpu,
                                               cpu.tokens, size.window, size.m,    scale},
          from_gpu{q.gpu,       keys.gpu, sinks.gpu, to_gpu(entries.cpu), chosen.gpu, on_gpu.tokens,
                   size.window, size.m,   scale};
      const Pair y = output({T, N, d}, dtype), lse = output({kRows, N, kTokens}, wide);
      kernels::compressed_attention_forward(host.stream, y.cpu, lse.cpu, from_cpu);
      kernels::compressed_attention_forward(gpu(), y.gpu, lse.gpu, from_gpu);
      expect_close(y, dtype, "y", 2);
      expect_close(lse, wide, "lse", 10);
      const Pair dq = output({T, N, d}, dtype), dkeys = output({kRows, kTokens, d}, dtype),
                 dentries = output({kRows, E, d}, dtype), delta = output({T, N}, wide);
      kernels::compressed_attention_backward(host.stream, {dq.cpu, dkeys.cpu, dentries.cpu, delta.cpu}, dy.cpu, y.cpu,
                                             lse.cpu, from_cpu, cpu.entries);
      kernels::compressed_attention_backward(gpu(), {dq.gpu, dkeys.gpu, dentries.gpu, delta.gpu}, dy.gpu, to_gpu(y.cpu),
                                             to_gpu(lse.cpu), from_gpu, on_gpu.entries);
      expect_close(dq, dtype, "dq", 4);
      expect_close(dkeys, dtype, "dkeys", 20);
      expect_close(dentries, dtype, "dentries", 20);
    }
}

TEST_F(CompressedTwins, MakeEntriesInSteps) {
  const int64_t m = 4, d = 24, wd = 2 * d, T = 30, E = 10;
  // Runs of several sequences: one begins, one continues in the middle of an entry, one has a single token.
  std::vector<int32_t> rows, begins(static_cast<size_t>(T), 0), positions;
  for (const auto& [row, past, count] : {std::tuple{2, 0, 17}, {0, 6, 12}, {1, 3, 1}})
    for (int32_t i = 0; i < count; ++i) rows.push_back(row), positions.push_back(past + i);
  const Pair of_rows = both(host.tensor(Shape{T}, rows)), of_begins = both(host.tensor(Shape{T}, begins)),
             of_positions = both(host.tensor(Shape{T}, positions));
  for (const DType dtype : kDTypes) {
    const Pair kv = values_of({T, wd}, dtype, "kv"), gate = values_of({T, wd}, dtype, "gate"),
               bias = values_of({m, wd}, accumulator(dtype), "bias");
    const Pair kv_tails = values_of({3, 2 * m, wd}, dtype, "kv tails"),
               gate_tails = values_of({3, 2 * m, wd}, dtype, "gate tails"),
               cache = values_of({3, E, d}, dtype, "cache");
    const Pair entries = output({T, d}, dtype), turns{host.stream.empty({T}, DType::i32), poisoned({T}, DType::i32)};
    const kernels::SequencePlaces cpu{of_rows.cpu, of_begins.cpu, of_positions.cpu},
        on_gpu{of_rows.gpu, of_begins.gpu, of_positions.gpu};
    kernels::make_entries_in_step(host.stream, entries.cpu, {kv_tails.cpu, gate_tails.cpu},
                                  {kv.cpu, gate.cpu, bias.cpu, true}, cpu);
    kernels::make_entries_in_step(gpu(), entries.gpu, {kv_tails.gpu, gate_tails.gpu},
                                  {kv.gpu, gate.gpu, bias.gpu, true}, on_gpu);
    expect_close(entries, dtype, "entries", 2);
    EXPECT_EQ(values(kv_tails.cpu), values(to_host(kv_tails.gpu)));
    EXPECT_EQ(values(gate_tails.cpu), values(to_host(gate_tails.gpu)));
    kernels::append_entries(host.stream, cache.cpu, entries.cpu, cpu, m);
    kernels::append_entries(gpu(), cache.gpu, to_gpu(entries.cpu), on_gpu, m);
    EXPECT_EQ(values(cache.cpu), values(to_host(cache.gpu)));
    kernels::entry_positions(host.stream, turns.cpu, of_positions.cpu, m);
    kernels::entry_positions(gpu(), turns.gpu, of_positions.gpu, m);
    expect_equal_ints(turns.cpu, turns.gpu, "turns", m);
  }
}

// A document's output and its keys' gradients have the same bits alone and behind another one.
TEST_F(CompressedTwins, PackingChangesNoBit) {
  const int64_t N = 4, d = 64, m = 4, length = 60, before = 41;
  const auto run = [&](int64_t first) {
    const int64_t S = first + length, E = kernels::entry_slots(S, m);
    std::vector<int32_t> ids(static_cast<size_t>(first), 0);
    ids.resize(static_cast<size_t>(S), 1);
    const Tensor id = to_gpu(host.tensor(Shape{1, S}, ids));
    const Places places = places_on(gpu(), id, id, m);
    // Rows of `first` other tokens, then those of the document.
    const auto rows = [&](const Shape& shape, std::string_view name) {
      const Tensor all = gpu().empty(shape.with(0, S), DType::bf16);
      const Tensor own = to_gpu(host.normal(shape, DType::bf16, name));
      if (first > 0)
        gpu().copy(all.narrow(0, 0, first), to_gpu(host.normal(shape.with(0, first), DType::bf16, "others")));
      gpu().copy(all.narrow(0, first, length), own);
      return all;
    };
    const Tensor kv = rows({length, 2 * d}, "kv"), gate = rows({length, 2 * d}, "gate"), keys = rows({length, d}, "k"),
                 q = rows({length, N, d}, "q"), dy = rows({length, N, d}, "dy");
    const Tensor bias = to_gpu(host.normal({m, 2 * d}, DType::f32, "bias")),
                 sinks = to_gpu(host.normal({N}, DType::bf16, "sinks"));
    const Tensor entries = gpu().empty({1, E, d}, DType::bf16);
    kernels::make_entries(gpu(), entries, {kv, gate, bias, true}, places.entries);
    const kernels::CompressedInputs in{q, keys.reshape({1, S, d}), sinks, entries, {}, places.tokens, 9, m, 0.1};
    const Tensor y = gpu().empty({S, N, d}, DType::bf16), lse = gpu().empty({1, N, S}, DType::f32),
                 dq = gpu().empty({S, N, d}, DType::bf16), dkeys = gpu().empty({1, S, d}, DType::bf16),
                 dentries = gpu().empty({1, E, d}, DType::bf16), delta = gpu().empty({S, N}, DType::f32);
    kernels::compressed_attention_forward(gpu(), y, lse, in);
    kernels::compressed_attention_backward(gpu(), {dq, dkeys, dentries, delta}, dy, y, lse, in, places.entries);
    const auto own = [&](const Tensor& of) {
      return values(to_host(of.reshape({S, of.elements() / S}).narrow(0, first, length)));
    };
    return std::vector{own(y), own(dq), own(dkeys)};
  };
  EXPECT_EQ(run(0), run(before));
}

}  // namespace
}  // namespace witan
