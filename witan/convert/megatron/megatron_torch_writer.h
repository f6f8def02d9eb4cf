// Files as torch.save() writes them, each a zip without compression, and the pickles in them, of protocol 2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/megatron/megatron_args.h"
#include "witan/tensor/shape.h"

namespace witan {

class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void number(double value);
  void text(std::string_view value);
  void global(std::string_view module, std::string_view name);
  void sizes(const Shape& shape);       // a tuple
  void torch_size(const Shape& shape);  // torch.Size of one
  void value(const MegatronValue& value);

  void mark() { out_ += '('; }
  void empty_tuple() { out_ += ')'; }
  void tuple() { out_ += 't'; }  // of everything since the mark
  void empty_dict() { out_ += '}'; }
  void set_items() { out_ += 'u'; }  // puts the keys and values since the mark into the dict below it
  void empty_list() { out_ += ']'; }
  void append_all() { out_ += 'e'; }  // appends everything since the mark to the list below it
  void call() { out_ += 'R'; }        // calls a global with a tuple of arguments
  void persistent() { out_ += 'Q'; }
  void begin_object(std::string_view module, std::string_view name);  // followed by its attributes: name, value …
  void end_object() { out_ += "ub"; }

  // Writes an argparse.Namespace of these.
  void arguments(const std::vector<std::pair<std::string, MegatronValue>>& all);

  std::string finish();

 private:
  void little(uint64_t value, size_t bytes);
  std::string out_;
};

class TorchWriter {
 public:
  explicit TorchWriter(AtomicFile& to) : to_(to) {}

  using Put = std::function<void(const std::byte* bytes, size_t count)>;
  // Writes a file with one tensor of at most kMostTensorBytes, whose bytes `fill` passes on in order. Returns its
  // length.
  uint64_t tensor(Element type, const Shape& shape, const std::function<void(const Put&)>& fill);
  // Writes a file with this pickle and no tensors.
  uint64_t pickle(std::string_view pickle);

  static constexpr uint64_t kMostTensorBytes = uint64_t{1} << 31;  // so that no size needs 64 bits

 private:
  struct Member {
    std::string name;
    uint64_t at = 0, size = 0;
    uint32_t crc = 0;
  };
  void begin();
  void member(const std::string& name, uint64_t size, const std::function<void(const Put&)>& fill);
  void member(const std::string& name, std::string_view bytes);
  uint64_t end();
  void put(std::string_view bytes) { to_.write(bytes); }

  AtomicFile& to_;
  uint64_t start_ = 0;  // the zip's first byte in the file
  std::vector<Member> members_;
};

}  // namespace witan
