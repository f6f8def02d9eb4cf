// The values of a page in the encodings of Parquet's Encodings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "witan/data/parquet/metadata.h"

namespace witan::parquet {

// The member for the column's physical type. INT32 is widened, with its sign.
struct Value {
  std::string_view bytes;
  union {
    int64_t integer = 0;
    double real;
    bool boolean;
  };
};

class ValueReader {
 public:
  virtual ~ValueReader() = default;
  // The next value; its bytes are valid until the next call. Throws tables::Damaged at the end of the page's bytes.
  virtual Value next() = 0;
};

// `encoding` is the format's number; `dictionary` is what indices point into. Both views must outlive the reader.
// Throws tables::Damaged, and tables::Unsupported for a pair of type and encoding that the format does not have.
std::unique_ptr<ValueReader> read_values(int32_t encoding, Physical physical, std::string_view page,
                                         const std::vector<Value>& dictionary);

// The `count` values of a dictionary's page.
std::vector<Value> read_dictionary(int32_t encoding, Physical physical, std::string_view page, uint32_t count);

}  // namespace witan::parquet
