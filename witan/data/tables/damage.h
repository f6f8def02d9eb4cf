// The exceptions of decoders of columnar files. Decoders know bytes but not their place. Their readers do, and turn
// these exceptions into errors that name file, row group, column and page.
#pragma once

#include <string>
#include <utility>

#include "witan/base/error.h"

namespace witan::tables {

// The bytes violate the format.
struct Damaged {
  std::string reason;
};

// The file is valid but uses a feature that is not supported.
struct Unsupported {
  std::string reason;
};

// Throws Damaged with the pieces as its reason unless the condition holds.
template <class... Pieces>
void intact(bool condition, const Pieces&... pieces) {
  if (!condition) [[unlikely]]
    throw Damaged{cat(pieces...)};
}

// Runs `read`, and names the place in its errors: `place()` is "FILE: row group 0, column text, page 3".
// Throws CorruptionError for Damaged, DataError for Unsupported.
template <class Read, class Place>
decltype(auto) named(const Read& read, const Place& place) {
  try {
    return read();
  } catch (const Damaged& damage) {
    throw CorruptionError(cat(place(), ": ", damage.reason, "; copy or download the file again"));
  } catch (const Unsupported& lacking) {
    throw DataError(cat(place(), ": ", lacking.reason));
  }
}

}  // namespace witan::tables
