// Secrets that clients of a server send to be let in.
#pragma once

#include <string>
#include <string_view>

namespace witan::serve {

// In a time that does not depend on where they differ.
bool same_secret(std::string_view a, std::string_view b);

// A new one that nobody can guess: 128 bits of the system's randomness, as 32 hexadecimal digits. Throws IoError where
// the system has none.
std::string new_secret();

}  // namespace witan::serve
