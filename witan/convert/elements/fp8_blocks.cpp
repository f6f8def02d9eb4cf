#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "witan/base/numbers/float8.h"
#include "witan/base/numbers/half.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

float decoded(std::byte code) {
  e4m3 value;
  value.bits = static_cast<uint8_t>(code);
  return value;
}

// Quantises one block of `rows` rows that begins at `from`, in a matrix with rows of `columns`.
float quantise_block(const float* from, int64_t rows, int64_t width, int64_t columns, std::byte* codes,
                     RoundingError& error) {
  float largest = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::fabs(from[row * columns + i]));
  constexpr float kZero = 1e-30F;  // the scale of smaller values has no inverse
  const float scale = largest > kZero ? largest / e4m3::kLargest : 1, inverse = 1 / scale;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) {
      const float value = from[row * columns + i];
      const e4m3 code(value * inverse);
      codes[row * columns + i] = static_cast<std::byte>(code.bits);
      const float rounded = static_cast<float>(code) * scale;
      error.add({&value, 1}, {&rounded, 1});
    }
  return scale;
}

}  // namespace

std::vector<std::byte> dequantise_fp8_blocks(std::span<const std::byte> values, Element scale_type,
                                             std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                             int64_t block) {
  std::array<float, 256> table{};
  for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = decoded(static_cast<std::byte>(bits));
  const int64_t across = (columns + block - 1) / block, down = (rows + block - 1) / block;
  std::vector<float> by(static_cast<size_t>(across * down));
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(by.data()), scale_type, scales.data(), 1, across * down);
  std::vector<std::byte> out(values.size() * sizeof(bf16));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t first = 0; first < columns; first += block) {
      const float scale = by[static_cast<size_t>(row / block * across + first / block)];
      for (int64_t column = first; column < std::min(first + block, columns); ++column) {
        const auto i = static_cast<size_t>(row * columns + column);
        const bf16 value(table[static_cast<size_t>(values[i])] * scale);
        std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
      }
    }
  return out;
}

RoundingError quantise_fp8_blocks(std::span<const float> values, int64_t columns, int64_t block, ThreadPool& pool,
                                  std::vector<std::byte>& codes, std::vector<std::byte>& scales) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  const int64_t across = (columns + block - 1) / block, down = (rows + block - 1) / block;
  const size_t codes_before = codes.size(), scales_before = scales.size();
  codes.resize(codes_before + values.size());
  scales.resize(scales_before + static_cast<size_t>(across * down) * sizeof(float));
  std::vector<RoundingError> errors(static_cast<size_t>(across * down));
  pool.run(across * down, [&](int64_t task) {
    const int64_t row = task / across * block, column = task % across * block, at = row * columns + column;
    const float scale =
        quantise_block(values.data() + at, std::min(block, rows - row), std::min(block, columns - column), columns,
                       codes.data() + codes_before + at, errors[static_cast<size_t>(task)]);
    std::memcpy(scales.data() + scales_before + static_cast<size_t>(task) * sizeof scale, &scale, sizeof scale);
  });
  RoundingError sum;
  for (const RoundingError& error : errors) sum += error;
  return sum;
}

}  // namespace witan
