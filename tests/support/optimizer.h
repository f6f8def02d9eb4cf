// Helpers for optimizer kernels: split master weights (base/numbers/half.h), sums of blocks, and updates of one
// parameter.
#pragma once

#include <bit>
#include <vector>

#include "support/rank.h"
#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/tensor/device.h"
#include "witan/tensor/host.h"

namespace witan::testing {

// Writes the 16-bit values into `value` and returns the remainders, both on the CPU.
inline Tensor split_into(Stream& stream, const Tensor& value, const Tensor& whole) {
  Tensor remainder = stream.empty(value.shape(), remainder_dtype(value.dtype()));
  split_from_host(value, remainder, 0, whole.raw(), whole.elements());
  return remainder;
}

// Float32 [n] with numbers of every kind: infinities, NaNs, numbers between two bfloat16 numbers and halfway between.
inline Tensor masters_of_every_kind(Stream& stream) {
  std::vector<float> all;
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x007Fu, 0x0080u, 0x3F80u, 0x4049u, 0x7F7Fu, 0x7F80u, 0x7FFFu})
    for (const uint32_t sign : {0u, 0x8000u})
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
        all.push_back(std::bit_cast<float>((upper | sign) << 16 | lower));
  Tensor out = stream.empty({static_cast<int64_t>(all.size())}, DType::f32);
  stream.write(out, all.data());
  return out;
}

inline std::vector<double> joined(const Tensor& value, const Tensor& remainder) {
  std::vector<double> all;
  for_joined_bytes(value, remainder, [&](const std::byte* bytes, int64_t count) {
    const auto* floats = reinterpret_cast<const float*>(bytes);
    all.insert(all.end(), floats, floats + count / static_cast<int64_t>(sizeof(float)));
  });
  return all;
}

// Sums of the blocks of a contiguous stack [E, N, K] on the host by a plain loop in float64: squares and zeros of each
// block.
inline std::vector<double> exact_block_sums(const Tensor& stack) {
  const std::vector<double> x = values(stack);
  const int64_t N = stack.size(1), K = stack.size(2), across = (K + 127) / 128, down = (N + 15) / 16;
  std::vector<double> sums(static_cast<size_t>(2 * stack.size(0) * down * across));
  for (int64_t i = 0; i < stack.elements(); ++i) {
    const int64_t e = i / (N * K), n = i / K % N, k = i % K;
    double* block = &sums[static_cast<size_t>(2 * (e * down * across + n / 16 * across + k / 128))];
    block[0] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
    block[1] += x[static_cast<size_t>(i)] == 0;
  }
  return sums;
}

// Whether sums of squares agree within `rtol` and numbers of zeros exactly.
inline ::testing::AssertionResult close_block_sums(const Tensor& sums, const Tensor& stack, double rtol) {
  const std::vector<double> found = values(sums), expected = exact_block_sums(stack);
  if (found.size() != expected.size())
    return ::testing::AssertionFailure() << found.size() << " sums against " << expected.size();
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::abs(found[i] - expected[i]) <= (i % 2 == 0 ? rtol * expected[i] : 0)))
      return ::testing::AssertionFailure() << (i % 2 == 0 ? "squares" : "zeros") << " of block " << i / 2 << ": "
                                           << found[i] << " against " << expected[i];
  return ::testing::AssertionSuccess();
}

// Sets every seventh column to zero.
inline void put_zeros(const Tensor& stack) {
  dispatch_floating(stack.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < stack.elements(); ++i)
      if (i % stack.shape().last() % 7 == 3) stack.data<T>()[i] = T(0.0f);
  });
}

// One parameter and its state by name.
struct AdamWTensors {
  Tensor value, remainder, m, v, gradient;
  kernels::UpdateTensors update() const { return {value, remainder, {m, v}, gradient}; }
};
struct SgdTensors {
  Tensor value, remainder, momentum, gradient;
  kernels::UpdateTensors update() const { return {value, remainder, {momentum}, gradient}; }
};

struct AdamWSettings {
  double beta1, beta2, eps, weight_decay;
  int64_t rate = kernels::step_value::learning_rate;
};
struct SgdSettings {
  double momentum, weight_decay;
  int64_t rate = kernels::step_value::learning_rate;
};

// Runs a kernel of kernels/optimizer/optimizer.h with its own parameter table, as a GPU needs.
template <class Kernel, class Args>
void update_with(const Kernel& kernel, Stream& stream, const std::vector<kernels::UpdateItem>& items,
                 const Tensor& step, const Args& args) {
  kernels::DeviceTable table(stream, static_cast<int64_t>(items.size()) * kernels::kUpdateColumns,
                             MemoryTag::workspace);
  kernel(stream, items, table.holding(stream, kernels::update_table(items)), step, args);
  stream.wait();  // before the table is destroyed
}

inline void adamw(Stream& stream, const AdamWTensors& t, const Tensor& step, const AdamWSettings& s) {
  update_with(kernels::adamw_all, stream, {{t.update(), s.weight_decay}}, step,
              kernels::AdamWArgs{s.beta1, s.beta2, s.eps, s.rate});
}
inline void sgd(Stream& stream, const SgdTensors& t, const Tensor& step, const SgdSettings& s) {
  update_with(kernels::sgd_all, stream, {{t.update(), s.weight_decay}}, step, kernels::SgdArgs{s.momentum, s.rate});
}

}  // namespace witan::testing
