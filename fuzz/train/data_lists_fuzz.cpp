// Lists of data in a configuration: blends, splits, weights, weight schedules, validation sets.
#include <algorithm>
#include <cmath>
#include <string>

#include "fuzz/support.h"
#include "witan/data/megatron/blend.h"
#include "witan/train/data/mixture_data.h"

namespace witan {
namespace {

void check_blend(const std::string& text) {
  const megatron::Blend blend = megatron::parse_blend(text, "data_path");
  assert(!blend.prefixes.empty() && (blend.weights.empty() || blend.weights.size() == blend.prefixes.size()));
  const auto index =
      megatron::build_blending_indices(megatron::normalized(blend.weights), blend.weights.empty() ? 0 : 50);
  for (const int16_t dataset : index.dataset) assert(dataset >= 0 && dataset < std::ssize(blend.prefixes));
}

void check_split(const std::string& text) {
  double at = 0;
  for (const auto& share : megatron::parse_split(text)) {
    if (!share) continue;
    assert(share->begin >= at && share->end > share->begin && share->end < 1 + 1e-9);
    at = share->end;
  }
}

void check_schedule(const std::string& text) {
  int64_t step = 1;
  for (const ScheduledWeights& phase : parse_data_schedule(text, 2)) {
    assert(phase.step > step && phase.weights.size() == 2);
    for (const double weight : phase.weights) assert(weight >= 0 && std::isfinite(weight));
    step = phase.step;
  }
}

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  const std::string text(fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] { check_blend(text); });
  fuzz::expect_own_errors([&] { check_split(text); });
  fuzz::expect_own_errors([&] { check_schedule(text); });
  fuzz::expect_own_errors([&] { parse_data_weights(text, "data_weights", 2); });
  fuzz::expect_own_errors([&] {
    for (const auto& [name, files] : parse_validation_sets(text)) assert(!name.empty());
  });
  return 0;
}
