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
  void tuple() { out_ += 't'; }  // of all from the mark on
  void empty_dict() { out_ += '}'; }
  void set_items() { out_ += 'u'; }  // keys and values from the mark on, into the dict below it
  void empty_list() { out_ += ']'; }
  void append_all() { out_ += 'e'; }  // what is from the mark on, to the list below it
  void call() { out_ += 'R'; }        // a global with a tuple of arguments
  void persistent() { out_ += 'Q'; }
  void begin_object(std::string_view module, std::string_view name);  // then its attributes: name, value …
  void end_object() { out_ += "ub"; }

  // An argparse.Namespace of these.
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
  // A file of one tensor, whose bytes `fill` puts one after the other: at most kMostTensorBytes. Returns its length.
  uint64_t tensor(Element type, const Shape& shape, const std::function<void(const Put&)>& fill);
  // A file of this pickle, without tensors.
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
  uint64_t start_ = 0;  // of the zip
  std::vector<Member> members_;
};

}  // namespace witan
