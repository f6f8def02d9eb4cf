// Parts of Python that lm-evaluation-harness uses: literals as repr() writes them, the draws of random.Random, and YAML
// as yaml.safe_load() reads it, except that the words yes, no, on and off stay text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// Parses a value as Python's repr() writes it, which is how templates print lists (ast.literal_eval): strings,
// integers, floats, True, False, None, and lists and tuples of these. Throws DataError naming `what` and the byte for
// anything else.
jinja::Value parse_python_literal(std::string_view text, std::string_view what);

// Draws as Python's random.Random does, with which lm-evaluation-harness chooses few-shot examples: the same seed gives
// the same examples. MT19937 seeded by init_by_array (Matsumoto and Nishimura, 2002), and CPython's Lib/random.py. Not
// thread-safe.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  // `count` different numbers of [0, size), as random.sample(range(size), count) of Python 3.11 and later draws them;
  // count <= size.
  std::vector<size_t> sample(size_t size, size_t count);

 private:
  static constexpr size_t kWords = 624;

  uint32_t next();
  void refill();
  size_t below(size_t bound);  // 0 < bound < 2^32

  std::array<uint32_t, kWords> state_{};
  size_t at_ = kWords;
};

// The mapping in the file, with the keys of the files that it includes (`include: FILE`, or a list of files in the same
// folder); its own keys take precedence. A tagged value becomes {"!tag": text}: `!function f` is {"!function": "f"}.
// Throws DataError naming the file, and the line if it is not YAML.
jinja::Value read_yaml_file(const fs::path& file);

// The mapping in a text, without resolving includes; `name` identifies it in messages. Throws DataError.
jinja::Value parse_yaml(const std::string& text, const std::string& name);

}  // namespace witan
