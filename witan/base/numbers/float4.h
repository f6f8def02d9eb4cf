// The 4-bit floating-point number E2M1 (OCP Microscaling Formats 1.0, section 5.3.3).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace witan {

// A sign, two bits of exponent with a bias of 1, one of mantissa. There are neither infinities nor NaN.
struct e2m1 {
  static constexpr std::array<float, 16> kValues{0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

  uint8_t bits = 0;

  e2m1() = default;
  // Rounds to nearest even and saturates at 6, without branches, so that loops of conversions vectorise.
  explicit e2m1(double value) {
    const double magnitude = std::fabs(value);
    const int64_t code = int64_t{magnitude > 0.25} + int64_t{magnitude >= 0.75} + int64_t{magnitude > 1.25} +
                         int64_t{magnitude >= 1.75} + int64_t{magnitude > 2.5} + int64_t{magnitude >= 3.5} +
                         int64_t{magnitude > 5};
    bits = static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
  }

  operator float() const { return kValues[bits & 15U]; }
};
static_assert(sizeof(e2m1) == 1);

}  // namespace witan
