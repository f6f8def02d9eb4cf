#include <bit>
#include <limits>

#include "witan/convert/megatron/megatron_torch_writer.h"

namespace witan {

void PickleWriter::little(uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    out_ += 'J';
    little(static_cast<uint64_t>(value), 4);
  } else {
    out_ += "\x8a\x08";
    little(static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::number(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (size_t i = 8; i-- > 0;) out_ += static_cast<char>(bits >> (8 * i) & 0xff);
}

void PickleWriter::text(std::string_view value) {
  out_ += 'X';
  little(value.size(), 4);
  out_ += value;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

void PickleWriter::sizes(const Shape& shape) {
  mark();
  for (int dim = 0; dim < shape.dims(); ++dim) integer(shape[dim]);
  tuple();
}

void PickleWriter::torch_size(const Shape& shape) {
  global("torch", "Size");
  mark();
  sizes(shape);
  tuple();
  call();
}

void PickleWriter::value(const MegatronValue& value) {
  if (std::holds_alternative<std::monostate>(value)) none();
  if (const auto* held = std::get_if<bool>(&value)) boolean(*held);
  if (const auto* held = std::get_if<int64_t>(&value)) integer(*held);
  if (const auto* held = std::get_if<double>(&value)) number(*held);
  if (const auto* held = std::get_if<std::string>(&value)) text(*held);
  if (const auto* held = std::get_if<std::vector<int64_t>>(&value)) {
    empty_list();
    mark();
    for (const int64_t one : *held) integer(one);
    append_all();
  }
}

void PickleWriter::begin_object(std::string_view module, std::string_view name) {
  global(module, name);
  empty_tuple();
  out_ += '\x81';
  empty_dict();
  mark();
}

void PickleWriter::arguments(const std::vector<std::pair<std::string, MegatronValue>>& all) {
  begin_object("argparse", "Namespace");
  for (const auto& [name, held] : all) {
    text(name);
    value(held);
  }
  end_object();
}

std::string PickleWriter::finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace witan
