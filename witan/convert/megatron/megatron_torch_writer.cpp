#include "witan/convert/megatron/megatron_torch_writer.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>

#include "witan/base/text.h"

namespace witan {
namespace {

constexpr size_t kTorchAlignment = 64;  // alignment of members' bytes in torch's zips
constexpr size_t kLocalHeaderBytes = 30;
constexpr uint16_t kSizesBehind = 0x0808;  // flags: a data descriptor follows; names are UTF-8

std::string zip_fields(std::initializer_list<std::pair<uint64_t, size_t>> fields) {
  std::string out;
  for (const auto& [value, bytes] : fields)
    for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string directory_entry(const std::string& name, uint64_t at, uint64_t size, uint32_t crc) {
  return zip_fields({{0x02014b50, 4},
                     {0, 2},
                     {0, 2},
                     {kSizesBehind, 2},
                     {0, 2},
                     {0, 4},
                     {crc, 4},
                     {size, 4},
                     {size, 4},
                     {name.size(), 2},
                     {0, 2},
                     {0, 2},
                     {0, 2},
                     {0, 2},
                     {0, 4},
                     {at, 4}}) +
         name;
}

std::string_view storage_of(Element type) {
  switch (type) {
    case Element::f64:
      return "DoubleStorage";
    case Element::f32:
      return "FloatStorage";
    case Element::f16:
      return "HalfStorage";
    default:
      return "BFloat16Storage";
  }
}

}  // namespace

void TorchWriter::begin() {
  start_ = to_.written();
  members_.clear();
}

void TorchWriter::member(const std::string& name, uint64_t size, const std::function<void(const Put&)>& fill) {
  assert(size <= kMostTensorBytes);
  Member made{cat("archive/", name), to_.written() - start_, size, 0};
  const size_t before = made.at + kLocalHeaderBytes + made.name.size() + 4;
  const size_t padding = (kTorchAlignment - before % kTorchAlignment) % kTorchAlignment;
  put(zip_fields({{0x04034b50, 4},
                  {0, 2},
                  {kSizesBehind, 2},
                  {0, 2},
                  {0, 4},
                  {0, 4},
                  {0, 4},
                  {0, 4},
                  {made.name.size(), 2},
                  {4 + padding, 2}}));
  put(made.name);
  put(zip_fields({{0x4246, 2}, {padding, 2}}));  // an extra field that readers ignore
  put(std::string(padding, 'Z'));
  uint64_t written = 0;
  uint64_t crc = ::crc32(0, nullptr, 0);
  fill([&](const std::byte* bytes, size_t count) {
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes), count);
    to_.write(bytes, count);
    written += count;
  });
  assert(written == size);
  made.crc = static_cast<uint32_t>(crc);
  put(zip_fields({{0x08074b50, 4}, {made.crc, 4}, {size, 4}, {size, 4}}));
  members_.push_back(std::move(made));
}

void TorchWriter::member(const std::string& name, std::string_view bytes) {
  member(name, bytes.size(),
         [&](const Put& put) { put(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()); });
}

uint64_t TorchWriter::end() {
  member("byteorder", "little");
  member("version", "3\n");
  const uint64_t directory = to_.written() - start_;
  for (const Member& one : members_) put(directory_entry(one.name, one.at, one.size, one.crc));
  const uint64_t bytes = to_.written() - start_ - directory;
  put(zip_fields({{0x06054b50, 4},
                  {0, 2},
                  {0, 2},
                  {members_.size(), 2},
                  {members_.size(), 2},
                  {bytes, 4},
                  {directory, 4},
                  {0, 2}}));
  return to_.written() - start_;
}

uint64_t TorchWriter::tensor(Element type, const Shape& shape, const std::function<void(const Put&)>& fill) {
  Shape strides;
  int64_t run = shape.elements();
  for (int dim = 0; dim < shape.dims(); ++dim) strides.append(run /= std::max<int64_t>(shape[dim], 1));
  PickleWriter pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  pickle.global("torch", storage_of(type));
  pickle.text("0");
  pickle.text("cpu");
  pickle.integer(shape.elements());
  pickle.tuple();
  pickle.persistent();
  pickle.integer(0);
  pickle.sizes(shape);
  pickle.sizes(strides);
  pickle.boolean(false);
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.call();
  pickle.tuple();
  pickle.call();
  begin();
  member("data.pkl", pickle.finish());
  member("data/0", static_cast<uint64_t>(shape.elements() * size_of(type)), fill);
  return end();
}

uint64_t TorchWriter::pickle(std::string_view pickle) {
  begin();
  member("data.pkl", pickle);
  return end();
}

}  // namespace witan
