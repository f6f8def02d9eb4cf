// Reads Python's pickles as data: a tree of values in which calls are recorded, not made. Nothing is imported,
// constructed or run, so that the bytes may be untrusted (protocols 2 to 5; opcodes as in Python's pickletools).
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

#include "witan/checkpoint/safetensors.h"

namespace witan {

struct PickleValue {
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    number,
    text,
    bytes,       // also integers beyond 64 bits
    list,        // lists, tuples and sets
    dict,        // items: key, value, key, value …
    global,      // a name: module in `text`, the rest in `name`
    object,      // items: callable, arguments, then the entries added to it as to a list or a dict
    persistent,  // items: its id outside the pickle, such as a tensor's storage
  };
  Kind kind = Kind::none;
  int64_t integer = 0;  // also of a boolean
  double number = 0;
  std::string_view text, name;  // views of the pickle's bytes
  std::vector<const PickleValue*> items;
  const PickleValue* state = nullptr;  // the attributes that were set on an object

  bool is(Kind other) const { return kind == other; }
  bool is_global(std::string_view module, std::string_view of) const {
    return kind == Kind::global && text == module && name == of;
  }
  // The value of a key of a dict, or of an object that is one, such as an OrderedDict; null if it is absent.
  const PickleValue* find(std::string_view key) const;
  // The keys that are texts with their values, in the order of the pickle; the last value of a key counts.
  std::map<std::string_view, const PickleValue*> members() const;
  // The callable of an object; null for other kinds.
  const PickleValue* callee() const { return kind == Kind::object ? items[0] : nullptr; }
};

class Pickle {
 public:
  // `bytes` must outlive this. Throws CheckpointError("WHERE: …") for damaged bytes and for an opcode that checkpoints
  // do not have, naming it.
  Pickle(std::string_view bytes, const std::string& where);

  const PickleValue& root() const { return *root_; }
  size_t bytes_read() const { return read_; }

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;  // they point at each other
  const PickleValue* root_ = nullptr;
  size_t read_ = 0;
};

// A file of torch.save(): a zip without compression, which holds a pickle and the bytes of its tensors. Nothing in it
// is run. Formats: PKWARE's APPNOTE 6.3, torch/serialization.py.
class TorchFile {
 public:
  // `bytes` must outlive this; `where` names them in messages. Throws CheckpointError for another file.
  TorchFile(std::span<const std::byte> bytes, std::string where);

  const PickleValue& root() const { return pickle_->root(); }
  // Returns a value as a tensor; nothing if it is something else. Throws CheckpointError for a tensor that lies outside
  // the file, is not contiguous, or has a dtype that weights cannot have.
  std::optional<PlacedTensor> tensor(const PickleValue& value, const std::string& name) const;

 private:
  void open_zip();
  void open_member(std::string_view header);
  std::string_view member(const std::string& name) const;

  std::string_view bytes_;
  std::string where_;
  std::map<std::string, std::string_view> members_;  // by name below their common folder
  std::unique_ptr<Pickle> pickle_;
};

// Returns "F32" for torch's FloatStorage or float32; empty for a name that is not a dtype.
std::string dtype_of_torch(std::string_view name);
// Reads the sizes of a tuple or a torch.Size. Throws CheckpointError("WHERE: …").
Shape shape_of_pickle(const PickleValue& value, const std::string& where);

}  // namespace witan
