// Gradient buffers, and their reduction over exactly the axes on which they are Partial.
//
// A family is the parameters that are reduced over the same group: those of experts over expert_replicate, all others
// over all ranks. Buffers of a family lie in buckets, each one allocation, so that one all-reduce serves many
// parameters. Buckets take parameters in reverse order, as backward finishes them, and are reduced in one order that is
// fixed by the parameters alone: every rank makes the same calls, whatever its backward does first. Reductions are
// sums; losses carry the global denominators already.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/parallel/groups.h"

namespace witan {

// Megatron-LM's rule: from the last parameter to the first, a bucket closes once it holds `bucket_elements` or more.
// Each bucket is the indices of its parameters, in that order.
std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements);

class GradientBuckets {
 public:
  static constexpr int64_t kBucketElements = 40'000'000;  // Megatron-LM's default

  // Allocates the buffers and binds them to the parameters, whose gradient_ready it listens to until it is destroyed.
  // Stream, parameters and groups must outlive it. `dtype` is that of gradients: float32, or float64 for float64
  // values.
  GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups, DType dtype,
                  int64_t bucket_elements = kBucketElements);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Before the first micro-batch of a step: gradients are forgotten; the first writer of each overwrites.
  void begin_step();
  // Before the backward of the last micro-batch: from now on a bucket is reduced as soon as all its gradients are
  // ready.
  void begin_last_micro_batch() { reducing_ = true; }
  // After it: reduces the buckets that are left. Gradients that nobody wrote are zeros then.
  void finish_step();

  struct Bucket {
    std::vector<Parameter*> parameters;  // in the order of the buffer
    size_t first_parameter = 0;          // the least index in the model of any of them
    Group* group = nullptr;
    Tensor buffer;       // [sum of elements]
    size_t waiting = 0;  // parameters that are not ready yet
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }  // in the order of their reduction

 private:
  void add_buckets(const std::vector<Parameter*>& parameters, const std::vector<size_t>& family, Group& group,
                   DType dtype, int64_t bucket_elements);
  void on_ready(Bucket& bucket);
  void reduce_next();

  Stream& stream_;
  std::vector<Bucket> buckets_;
  size_t next_ = 0;  // the first bucket that is not reduced
  bool reducing_ = false;
};

}  // namespace witan
