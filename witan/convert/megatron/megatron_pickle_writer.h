// Writes a pickle of protocol 2: the values that files of PyTorch's need, each as its opcodes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace witan
