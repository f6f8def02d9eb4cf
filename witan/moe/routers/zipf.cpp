#include "witan/moe/routers/zipf.h"

#include <cmath>
#include <vector>

namespace witan {
namespace {

constexpr double kMostExponent = 16;

// The probability that expert 0 is among the first K. With v the probability that it has not arrived by some time,
// expert e has not with v^(its rate); of the others fewer than K may have.
double share_of_the_first(int64_t E, int64_t K, double exponent) {
  constexpr int kPoints = 64;
  std::vector<double> rates;
  for (int64_t e = 1; e < E; ++e) rates.push_back(std::pow(static_cast<double>(e + 1), -exponent));
  double share = 0;
  for (int point = 0; point < kPoints; ++point) {
    // Closer to each other near v = 1, where the first of many experts arrive.
    const double y = (point + 0.5) / kPoints, v = 1 - y * y * y;
    std::vector<double> arrived(static_cast<size_t>(K));  // [n]: the probability that n of the others have
    arrived[0] = 1;
    for (const double rate : rates) {
      const double late = std::pow(v, rate);
      for (size_t n = arrived.size(); n-- > 0;)
        arrived[n] = arrived[n] * late + (n > 0 ? arrived[n - 1] * (1 - late) : 0);
    }
    for (const double probability : arrived) share += probability * 3 * y * y / kPoints;
  }
  return share;
}

}  // namespace

double zipf_exponent(int64_t E, int64_t K, double imbalance) {
  const double wanted = imbalance * static_cast<double>(K) / static_cast<double>(E);
  double low = 0, high = kMostExponent;
  for (int i = 0; i < 24; ++i) {
    const double middle = (low + high) / 2;
    (share_of_the_first(E, K, middle) < wanted ? low : high) = middle;
  }
  return high;
}

}  // namespace witan
