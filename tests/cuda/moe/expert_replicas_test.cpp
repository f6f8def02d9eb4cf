#include "witan/kernels/moe/expert_replicas.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::values;
using Integers = std::vector<int64_t>;

class ExpertReplicasOnGpu : public testing::CudaTest {
 protected:
  struct Sizes {
    int64_t ranks, experts, slots;
  };
  static std::vector<Sizes> sizes() {
    return {{2, 4, 1}, {2, 128, 2}, {4, 128, 4}, {4, 4, 3}, {8, 256, 8}, {16, 64, 2}, {3, 21, 5}, {2, 1000, 4}};
  }

  // Loads with a few hot experts; rank 1 has tokens for few experts only.
  Tensor uneven(const Sizes& size, uint64_t seed) {
    const Philox rng(seed, 11);
    Integers counts;
    for (int64_t i = 0; i < size.ranks * size.experts; ++i) {
      const double u = rng.uniform(static_cast<uint64_t>(i % size.experts));
      counts.push_back(static_cast<int64_t>(3000 * u * u * u * u * u * u) +
                       static_cast<int64_t>(rng.below(30, static_cast<uint64_t>(i))));
      if (i / size.experts == 1 && i % 3 == 0) counts.back() = 0;
    }
    return host.tensor<int64_t>({size.ranks, size.experts}, counts);
  }
  kernels::ReplicaChoice chosen(const Sizes& size, uint64_t seed) {
    const kernels::ReplicaChoice choice{host.stream.empty({size.ranks, size.slots}, DType::i64),
                                        host.stream.empty({size.ranks, size.experts}, DType::i64)};
    kernels::choose_replicas(host.stream, choice, uneven(size, seed));
    return choice;
  }
  void expect_same(const Tensor& gpu_found, const Tensor& found) {
    EXPECT_EQ(to_host(gpu_found).to_vector<int64_t>(), found.to_vector<int64_t>());
  }
};

TEST_F(ExpertReplicasOnGpu, AreChosenAsOnTheCpu) {
  for (const Sizes& size : sizes())
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(cat(size.ranks, " ranks, ", size.experts, " experts, ", size.slots, " slots, seed ", seed));
      const kernels::ReplicaChoice choice = chosen(size, seed);
      for (int again = 0; again < 2; ++again) {
        const kernels::ReplicaChoice on_gpu{poisoned({size.ranks, size.slots}, DType::i64),
                                            poisoned({size.ranks, size.experts}, DType::i64)};
        kernels::choose_replicas(gpu(), on_gpu, to_gpu(uneven(size, seed)));
        expect_same(on_gpu.hosted, choice.hosted);
        expect_same(on_gpu.place, choice.place);
      }
    }
}

TEST_F(ExpertReplicasOnGpu, AreNotChosenWithoutTokens) {
  const Tensor none = to_gpu(host.stream.zeros({4, 8}, DType::i64));
  const kernels::ReplicaChoice choice{poisoned({4, 2}, DType::i64), poisoned({4, 8}, DType::i64)};
  kernels::choose_replicas(gpu(), choice, none);
  EXPECT_EQ(to_host(choice.hosted).to_vector<int64_t>(), Integers(8, -1));
}

TEST_F(ExpertReplicasOnGpu, PlaceAssignmentsAsTheCpuDoes) {
  for (const Sizes& size : sizes())
    for (const int64_t n : {0, 1, 5000}) {
      SCOPED_TRACE(cat(size.ranks, " ranks, ", size.experts, " experts, ", n, " assignments"));
      const kernels::ReplicaChoice choice = chosen(size, 1);
      const Philox rng(9, static_cast<uint64_t>(n));
      Integers counts(static_cast<size_t>(size.experts));
      std::vector<int32_t> ids;
      for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) {
        ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(size.experts + 1), i)) - 1);
        if (ids.back() >= 0) ++counts[static_cast<size_t>(ids.back())];
      }
      const int64_t places = size.experts + size.ranks * size.slots;
      const Tensor own = host.tensor<int32_t>({n}, ids), kept = host.tensor<int64_t>({size.experts}, counts);
      const Tensor place = choice.place.narrow(0, 1, 1).reshape({size.experts});
      const kernels::PlacedAssignments placed{host.stream.empty({n}, DType::i32),
                                              host.stream.empty({places}, DType::i64)};
      kernels::place_assignments(host.stream, placed, own, kept, place);
      const kernels::PlacedAssignments on_gpu{poisoned({n}, DType::i32), poisoned({places}, DType::i64)};
      kernels::place_assignments(gpu(), on_gpu, to_gpu(own), to_gpu(kept), to_gpu(place));
      EXPECT_EQ(to_host(on_gpu.ids).to_vector<int32_t>(), placed.ids.to_vector<int32_t>());
      expect_same(on_gpu.counts, placed.counts);
    }
}

TEST_F(ExpertReplicasOnGpu, CountTravellingRowsAsOnTheCpu) {
  constexpr int64_t kStride = int64_t{1} << 40;
  for (const Sizes& size : sizes())
    for (const int64_t rows : {1, 7, 300}) {
      const kernels::ReplicaChoice choice = chosen(size, 2);
      const kernels::ReplicaChoice on_gpu{to_gpu(choice.hosted), to_gpu(choice.place)};
      for (int64_t rank = 0; rank < size.ranks; ++rank) {
        const auto compare = [&](int64_t elements, const auto& compute) {
          const Tensor found = host.stream.empty({elements}, DType::i64), gpu_found = poisoned({elements}, DType::i64);
          compute(host.stream, found, choice);
          compute(gpu(), gpu_found, on_gpu);
          expect_same(gpu_found, found);
        };
        compare(size.slots * rows, [&](Stream& s, const Tensor& to, const kernels::ReplicaChoice& of) {
          kernels::replica_sources(s, to, of, rank, kStride);
        });
        for (const kernels::ReplicaRound& round :
             {kernels::ReplicaRound{rank, 0, rows}, kernels::ReplicaRound{rank, size.slots - 1, rows, 1}}) {
          SCOPED_TRACE(cat(size.ranks, " ranks, ", size.experts, " experts, rank ", rank, ", slot ", round.slot));
          compare(rows, [&](Stream& s, const Tensor& to, const kernels::ReplicaChoice& of) {
            kernels::replica_homes(s, to, of, round, kStride);
          });
          compare(size.ranks, [&](Stream& s, const Tensor& to, const kernels::ReplicaChoice& of) {
            kernels::replica_experts(s, to, of, round);
          });
          compare(size.ranks * (2 + rows), [&](Stream& s, const Tensor& to, const kernels::ReplicaChoice& of) {
            const int64_t R = size.ranks;
            kernels::replica_counts(s, {to.narrow(0, 0, R), to.narrow(0, R, R), to.narrow(0, 2 * R, R * rows)}, of,
                                    round);
          });
        }
      }
    }
}

TEST_F(ExpertReplicasOnGpu, AreAddedAsOnTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Shape& matrix : {Shape{1}, Shape{7}, Shape{3, 5}, Shape{96, 64}, Shape{513, 8}}) {
      SCOPED_TRACE(cat(dtype, " ", matrix));
      const int64_t elements = matrix.elements();
      const Tensor w = host.normal({4, elements}, dtype, "w"), found = host.normal({5, elements}, dtype, "found");
      const Tensor experts = host.tensor<int64_t>({5}, {3, 0, 3, 1, -1}), gpu_w = to_gpu(w);
      kernels::add_to_experts(host.stream, w, found, experts);
      kernels::add_to_experts(gpu(), gpu_w, to_gpu(found), to_gpu(experts));
      EXPECT_EQ(values(to_host(gpu_w)), values(w));
    }
}

}  // namespace
}  // namespace witan
