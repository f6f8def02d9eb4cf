// Elements of tensors as files hold them, in whatever floating dtype: copied, rounded and dequantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

// Floating dtypes of files, by their names there. Others are not weights. Those from q5_0 on stand in blocks
// (block_codec.h) and have no size of their own.
enum class Element : uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e8m0, q5_0, q8_0, q4_k, q5_k, q6_k, mxfp4 };

// "F32" …; throws CheckpointError("WHERE: …") for another one.
Element element_from_name(std::string_view name, std::string_view where);
std::string_view name_of(Element element);
int64_t size_of(Element element);
// Whether every value of `narrow` is one of `wide` too (of MXFP4 those that weights have).
bool holds(Element wide, Element narrow);

// `count` elements of dtype `from_type`, each `stride` elements after the one before, to consecutive ones of dtype
// `to_type`: the same bits where both are one dtype, else rounded to nearest even. Neither need be aligned. To an 8-bit
// dtype nothing is converted: an internal error.
void copy_elements(Element to_type, std::byte* to, Element from_type, const std::byte* from, int64_t stride,
                   int64_t count);

// How many elements are NaN or infinite, of float32, float64, float16 or bfloat16; of other dtypes, 0. They need not be
// aligned.
int64_t count_non_finite(Element type, std::span<const std::byte> elements);

}  // namespace witan
