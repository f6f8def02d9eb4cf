// Numbers of things, for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace witan {

// "1 document", "2 documents": nouns whose plural takes an s.
inline std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

}  // namespace witan
