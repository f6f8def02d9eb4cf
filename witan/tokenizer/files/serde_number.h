// Numbers of a JSON text as Rust's serde_json reads them by default (its feature float_roundtrip off), and thereby
// Hugging Face tokenizers: the digits become a whole number of 64 bits, which is rounded to float64 and then multiplied
// or divided by a power of ten. Numbers of 17 digits so become one of the neighbours of what they say. The scores of
// published Unigram vocabularies have as many, and which of two segmentations with nearly equal scores is the better
// one depends on their last bits. https://github.com/serde-rs/json/blob/master/src/de.rs
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace witan {

// The value of a JSON number; nothing where `text` is none, or has a value beyond float64.
std::optional<double> read_serde_number(std::string_view text);

// A JSON number that read_serde_number() reads as `value`, which is finite and has been read before: no text gives some
// other numbers, of which this writes the shortest decimal one.
std::string write_serde_number(double value);

}  // namespace witan
