#include "witan/base/json_integer.h"

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

int64_t json_integer(const Json& value, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= least && number <= most) return number;
  throw Json::out_of_range::create(
      400,
      cat(clipped(value.dump(-1, ' ', false, Json::error_handler_t::replace)), " is there, not ", least, " to ", most),
      &value);
}

}  // namespace witan
