// JSON numbers as Rust's serde_json parses them by default (without its feature float_roundtrip), and thus Hugging Face
// tokenizers: the digits form a 64-bit integer, which is rounded to float64 and then multiplied or divided by a power
// of ten. For numbers of 17 digits the result may be a float64 next to the correct one. Published Unigram scores have
// as many digits, and their last bits decide between segmentations of nearly equal scores.
// https://github.com/serde-rs/json/blob/master/src/de.rs
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace witan {

// The value of a JSON number; nullopt if `text` is not a number or its value is beyond float64.
std::optional<double> read_serde_number(std::string_view text);

// A JSON number that read_serde_number() reads as `value`, which must be finite. Some values cannot be the result of
// any text, and thus never come from a file; for these, returns the shortest decimal.
std::string write_serde_number(double value);

}  // namespace witan
