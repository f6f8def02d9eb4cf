// Python's pickles read as data: a tree of values in which a call stands as a call. Nothing is looked up, made or run,
// so that the bytes may be anybody's (protocols 2 to 5; opcodes as in Python's pickletools).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

struct PickleValue {
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    number,
    text,
    bytes,       // also whole numbers beyond 64 bits
    list,        // lists, tuples and sets
    dict,        // items: key, value, key, value …
    global,      // a name: module in `text`, the rest in `name`
    object,      // items: what is called, its arguments; then what was put into it, as of a list or a dict
    persistent,  // items: what it is known by outside, as tensors know their storage
  };
  Kind kind = Kind::none;
  int64_t integer = 0;  // of a boolean too
  double number = 0;
  std::string_view text, name;  // of the pickle's bytes
  std::vector<const PickleValue*> items;
  const PickleValue* state = nullptr;  // of an object: what its attributes were set to

  bool is(Kind other) const { return kind == other; }
  bool is_global(std::string_view module, std::string_view of) const {
    return kind == Kind::global && text == module && name == of;
  }
  // Of a dict, or of what was put into an object that is one, such as an OrderedDict: null where there is no such key.
  const PickleValue* find(std::string_view key) const;
  // The keys that are texts, with their values, in the order of the pickle; the last of a key counts.
  std::map<std::string_view, const PickleValue*> members() const;
  // Of an object: what is called; null of others.
  const PickleValue* callee() const { return kind == Kind::object ? items[0] : nullptr; }
};

class Pickle {
 public:
  // `bytes` must outlive this. Throws CheckpointError("WHERE: …") for what is damaged or holds an opcode that no
  // checkpoint has, naming it.
  Pickle(std::string_view bytes, const std::string& where);

  const PickleValue& root() const { return *root_; }
  size_t bytes_read() const { return read_; }

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;  // which point at each other
  const PickleValue* root_ = nullptr;
  size_t read_ = 0;
};

}  // namespace witan
