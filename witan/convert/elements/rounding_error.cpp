#include "witan/convert/elements/rounding_error.h"

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

void require_quantisable(std::span<const float> values, std::string_view tensor, std::string_view type) {
  constexpr float kLargest = 65504;
  for (const float value : values)
    require<CheckpointError>(std::fabs(value) <= kLargest, "\"", clipped(tensor), "\" has the value ", value,
                             ", which cannot be quantised to ", type,
                             ": values must be finite and no larger than 65504. Export with --dtype bfloat16");
}

}  // namespace witan
