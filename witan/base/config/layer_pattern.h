// Patterns that choose layers of a model, as Megatron-LM writes them (moe_layer_freq, window_attn_skip_freq ...): an
// integer N, which stands for a repeating pattern, or a Python expression of lists of 0 and 1 with + and *, as in
// "([1]*3+[0])*2", one entry for each layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Reads the entries of such an expression from unchecked text. Empty if it is invalid or longer than 100000 layers.
std::vector<bool> read_layer_list(std::string_view text);

// Reads such an expression with entries from 0 to `most`.
std::vector<int64_t> read_layer_numbers(std::string_view text, int64_t most);

// The layer of each N that an integer selects.
enum class OfPeriod : uint8_t {
  first,  // layers 0, N, 2 N ...
  last,   // layers N - 1, 2 N - 1 ...
};

// The layers that `key` = `pattern` chooses: those whose entry of the list is 1, or those that the integer singles out.
// Throws ConfigError, naming key, value and what it must be.
std::vector<bool> choose_layers(const char* key, const std::string& pattern, int64_t num_layers, OfPeriod of_period);

}  // namespace witan
