#include "witan/model/activation_statistics.h"

#include <cmath>

#include "witan/kernels/pointwise/activation_moments.h"

namespace witan {
namespace {

double rms(const ActivationMoments& moments) {
  return std::sqrt(moments.square_sum / moments.elements);
}
double largest(const ActivationMoments& moments) {
  return moments.largest;
}
double zero_share(const ActivationMoments& moments) {
  return moments.zeros / moments.elements;
}

// Only the zeros of MLPs mean something: tokens dropped by every expert, and units that are all off.
constexpr ActivationStatistic kStatistics[] = {
    {"residual_rms", Activation::residual, rms},
    {"residual_max", Activation::residual, largest},
    {"attention_rms", Activation::attention, rms},
    {"attention_max", Activation::attention, largest},
    {"mlp_rms", Activation::mlp, rms},
    {"mlp_max", Activation::mlp, largest},
    {"mlp_zeros", Activation::mlp, zero_share},
};

}  // namespace

ActivationMoments ActivationMoments::read(const double* moments) {
  namespace moment = kernels::activation_moment;
  return {moments[moment::square_sum], moments[moment::largest], moments[moment::zeros], moments[moment::elements]};
}

void ActivationMoments::add(const ActivationMoments& part) {
  square_sum += part.square_sum;
  zeros += part.zeros;
  elements += part.elements;
  if (part.largest > largest || std::isnan(part.largest)) largest = part.largest;
}

std::span<const ActivationStatistic> activation_statistics() {
  return kStatistics;
}

}  // namespace witan
