// Python's pickles read as data: a tree of values in which a call stands as a call. Nothing is looked up, made or run,
// so that the bytes may be anybody's (protocols 2 to 5; opcodes as in Python's pickletools).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/checkpoint/safetensors_header.h"

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

// A file of torch.save(): a zip without compression, which holds a pickle and the bytes of its tensors. Nothing in it
// is run. Formats: PKWARE's APPNOTE 6.3, torch/serialization.py.
class TorchFile {
 public:
  // `bytes` must outlive this; `where` names them in messages. Throws CheckpointError for what is no such file.
  TorchFile(std::span<const std::byte> bytes, std::string where);

  const PickleValue& root() const { return pickle_->root(); }
  // A value as a tensor; nothing when it is something else. Throws CheckpointError for a tensor that does not lie in
  // the file, whose elements do not follow each other, or of a dtype that files of weights do not have.
  std::optional<PlacedTensor> tensor(const PickleValue& value, const std::string& name) const;

 private:
  void open_zip();
  void open_member(std::string_view header);
  std::string_view member(const std::string& name) const;

  std::string_view bytes_;
  std::string where_;
  std::map<std::string, std::string_view> members_;  // without the folder that all are in
  std::unique_ptr<Pickle> pickle_;
};

// "F32" of torch's FloatStorage or float32; empty for a name of no dtype.
std::string dtype_of_torch(std::string_view name);
// The sizes of a tuple, or of torch.Size. Throws CheckpointError("WHERE: …").
Shape shape_of_pickle(const PickleValue& value, const std::string& where);

}  // namespace witan
