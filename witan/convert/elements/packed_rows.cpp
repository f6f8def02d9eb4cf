#include <algorithm>
#include <cmath>

#include "witan/convert/elements/scale_search.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

constexpr int64_t kRowsOfTask = 8;

// The signed code of element `i` of a row.
int code_at(const std::byte* row, int64_t i, int bits) {
  if (bits == 8) return static_cast<int>(row[i]) - 128;
  return static_cast<int>(static_cast<unsigned>(row[i / 2]) >> i % 2 * 4 & 15U) - 8;
}

void put_code(std::byte* row, int64_t i, int bits, int code) {
  if (bits == 8)
    row[i] = static_cast<std::byte>(code + 128);
  else
    row[i / 2] |= static_cast<std::byte>(static_cast<unsigned>(code + 8) << i % 2 * 4);
}

float scale_for(std::span<const float> group, int bits) {
  if (bits == 4) {
    std::vector<float> weights(group.size());
    importance_of(group, weights.data());
    return symmetric_scale(group, weights.data(), -8, 7, ScaleSign::positive);
  }
  float largest = 0;
  for (const float value : group) largest = std::max(largest, std::fabs(value));
  return largest / 127;
}

float as_float(Element type, const std::byte* at) {
  float value = 0;
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(&value), type, at, 1, 1);
  return value;
}

}  // namespace

std::vector<std::byte> dequantise_packed(std::span<const std::byte> words, Element scale_type,
                                         std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                         int64_t groups, int bits) {
  const int64_t row_bytes = packed_words(columns, bits) * 4, group = columns / groups, width = size_of(scale_type);
  std::vector<std::byte> out(static_cast<size_t>(rows * columns * width));
  std::vector<float> values(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += group) {
      const float scale = as_float(scale_type, scales.data() + (row * groups + first / group) * width);
      for (int64_t i = first; i < first + group; ++i)
        values[static_cast<size_t>(i)] = scale * static_cast<float>(code_at(words.data() + row * row_bytes, i, bits));
    }
    copy_elements(scale_type, out.data() + row * columns * width, Element::f32,
                  reinterpret_cast<const std::byte*>(values.data()), 1, columns);
  }
  return out;
}

RoundingError quantise_packed(std::span<const float> values, int64_t columns, int64_t groups, int bits,
                              Element scale_type, ThreadPool& pool, std::vector<std::byte>& words,
                              std::vector<std::byte>& scales, const ErrorFeedback* feedback) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  const int64_t row_bytes = packed_words(columns, bits) * 4, group = columns / groups, width = size_of(scale_type);
  const int low = -(1 << (bits - 1)), high = -low - 1;
  const size_t words_before = words.size(), scales_before = scales.size();
  words.resize(words_before + static_cast<size_t>(rows * row_bytes));
  scales.resize(scales_before + static_cast<size_t>(rows * groups * width));
  std::vector<RoundingError> errors(static_cast<size_t>((rows + kRowsOfTask - 1) / kRowsOfTask));
  pool.run(static_cast<int64_t>(errors.size()), [&](int64_t task) {
    std::vector<float> wanted(static_cast<size_t>(columns));  // a row's values with what feedback adds to them
    for (int64_t row = task * kRowsOfTask; row < std::min(rows, (task + 1) * kRowsOfTask); ++row) {
      const auto given = values.subspan(static_cast<size_t>(row * columns), static_cast<size_t>(columns));
      std::ranges::copy(given, wanted.begin());
      float scale = 0, inverse = 0;
      for (int64_t i = 0; i < columns; ++i) {
        if (i % group == 0) {
          const float exact =
              scale_for(std::span(wanted).subspan(static_cast<size_t>(i), static_cast<size_t>(group)), bits);
          std::byte* scale_at = scales.data() + scales_before + (row * groups + i / group) * width;
          copy_elements(scale_type, scale_at, Element::f32, reinterpret_cast<const std::byte*>(&exact), 1, 1);
          scale = as_float(scale_type, scale_at), inverse = scale > 0 ? 1 / scale : 0;
        }
        const int code = nearest(wanted[static_cast<size_t>(i)] * inverse, low, high);
        put_code(words.data() + words_before + row * row_bytes, i, bits, code);
        const float rounded = scale * static_cast<float>(code);
        errors[static_cast<size_t>(task)].add({&given[static_cast<size_t>(i)], 1}, {&rounded, 1});
        if (feedback != nullptr) feedback->spread(wanted, i, rounded);
      }
    }
  });
  RoundingError sum;
  for (const RoundingError& error : errors) sum += error;
  return sum;
}

}  // namespace witan
