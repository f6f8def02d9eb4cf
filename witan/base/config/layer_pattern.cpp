#include "witan/base/config/layer_pattern.h"

#include <charconv>
#include <optional>

#include "witan/base/error.h"

namespace witan {
namespace {

// sum := product ('+' product)*, product := list ('*' number)*, list := '[' numbers ']' | '(' sum ')'
class LayerListReader {
 public:
  // Entries are numbers up to `most`.
  LayerListReader(std::string_view text, int64_t most) : most_(most) {
    for (const char c : text)
      if (c != ' ') text_ += c;
  }

  std::vector<int64_t> read() {
    std::vector<int64_t> layers = sum(0);
    return ok_ && at_ == text_.size() ? layers : std::vector<int64_t>();
  }

 private:
  static constexpr size_t kMostLayers = 100000;
  static constexpr int kMostDepth = 32;

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void fail() { ok_ = false; }

  static void append(std::vector<int64_t>& layers, const std::vector<int64_t>& more) {
    layers.insert(layers.end(), more.begin(), more.end());
  }

  std::vector<int64_t> sum(int depth) {
    std::vector<int64_t> layers = product(depth);
    while (ok_ && take('+')) append(layers, product(depth));
    if (layers.size() > kMostLayers) fail();
    return layers;
  }

  std::vector<int64_t> product(int depth) {
    std::vector<int64_t> once = list(depth);
    while (ok_ && take('*')) {
      size_t times = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), times);
      if (error != std::errc() || times == 0 || once.size() > kMostLayers / times) {
        fail();
        return {};
      }
      at_ = static_cast<size_t>(end - text_.data());
      std::vector<int64_t> all;
      for (size_t i = 0; i < times; ++i) append(all, once);
      once = std::move(all);
    }
    return once;
  }

  std::vector<int64_t> list(int depth) {
    std::vector<int64_t> layers;
    if (depth >= kMostDepth) {
      fail();
    } else if (take('(')) {
      layers = sum(depth + 1);
      if (!take(')')) fail();
    } else if (take('[')) {
      do {
        layers.push_back(number());
      } while (ok_ && take(','));
      if (!take(']')) fail();
    } else {
      fail();
    }
    return layers;
  }

  // Parses decimal digits only, as Python writes them.
  int64_t number() {
    int64_t value = 0;
    const char *const from = text_.data() + at_, *const end = text_.data() + text_.size();
    const auto read = std::from_chars(from, end, value);
    const bool padded = *from == '0' && read.ptr != from + 1;
    if (read.ec != std::errc() || *from == '-' || padded || value > most_) fail();
    at_ += static_cast<size_t>(read.ptr - from);
    return value;
  }

  const int64_t most_;
  std::string text_;
  size_t at_ = 0;
  bool ok_ = true;
};

std::optional<int64_t> read_period(const std::string& text) {
  int64_t period = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), period);
  if (error != std::errc() || end != text.data() + text.size() || period < 1) return std::nullopt;
  return period;
}

}  // namespace

std::vector<bool> read_layer_list(std::string_view text) {
  const std::vector<int64_t> numbers = read_layer_numbers(text, 1);
  return {numbers.begin(), numbers.end()};
}

std::vector<int64_t> read_layer_numbers(std::string_view text, int64_t most) {
  return LayerListReader(text, most).read();
}

std::vector<bool> choose_layers(const char* key, const std::string& pattern, int64_t num_layers, OfPeriod of_period) {
  std::vector<bool> layers;
  if (const auto period = read_period(pattern)) {
    const int64_t chosen = of_period == OfPeriod::first ? 0 : *period - 1;
    for (int64_t layer = 0; layer < num_layers; ++layer) layers.push_back(layer % *period == chosen);
  } else {
    layers = read_layer_list(pattern);
  }
  require<ConfigError>(layers.size() == static_cast<size_t>(num_layers), key, " = ", pattern,
                       ": must be a whole number, or a pattern of 0 and 1 for each of the ", num_layers,
                       " layers, as in [1,0]");
  return layers;
}

}  // namespace witan
