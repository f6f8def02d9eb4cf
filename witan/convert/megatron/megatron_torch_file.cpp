#include <algorithm>
#include <array>
#include <limits>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/megatron/megatron_pickle.h"

namespace witan {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kEnd = "PK\5\6", kEnd64 = "PK\6\6", kLocator64 = "PK\6\7", kCentral = "PK\1\2",
                           kLocal = "PK\3\4";
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMost16 = 0xffff, kMost32 = 0xffffffff;
constexpr int64_t kMostDim = int64_t{1} << 48;

struct TorchDtype {
  std::string_view storage, scalar, name;  // torch.FloatStorage, torch.float32, "F32"
};
constexpr std::array<TorchDtype, 9> kTorchDtypes = {{{"DoubleStorage", "float64", "F64"},
                                                     {"FloatStorage", "float32", "F32"},
                                                     {"HalfStorage", "float16", "F16"},
                                                     {"BFloat16Storage", "bfloat16", "BF16"},
                                                     {"LongStorage", "int64", "I64"},
                                                     {"IntStorage", "int32", "I32"},
                                                     {"ShortStorage", "int16", "I16"},
                                                     {"ByteStorage", "uint8", "U8"},
                                                     {"BoolStorage", "bool", "BOOL"}}};

uint64_t zip_number(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

std::string dtype_of_torch(std::string_view name) {
  const auto* found = std::ranges::find_if(
      kTorchDtypes, [&](const TorchDtype& dtype) { return dtype.storage == name || dtype.scalar == name; });
  return found == kTorchDtypes.end() ? "" : std::string(found->name);
}

Shape shape_of_pickle(const PickleValue& value, const std::string& where) {
  const PickleValue* sizes = &value;
  if (value.callee() && value.callee()->is_global("torch", "Size") && value.items[1]->items.size() == 1)
    sizes = value.items[1]->items[0];
  require<CheckpointError>(sizes->is(Kind::list) && sizes->items.size() <= Shape::kMostDims, where,
                           ": the sizes of a tensor are expected, of at most ", Shape::kMostDims, " dims");
  Shape shape;
  int64_t elements = 1;
  for (const PickleValue* size : sizes->items) {
    require<CheckpointError>(size->is(Kind::integer) && size->integer >= 0 && size->integer <= kMostDim, where,
                             ": a size of a tensor is not a number of elements");
    shape.append(size->integer);
    require<CheckpointError>(
        !__builtin_mul_overflow(elements, std::max<int64_t>(size->integer, 1), &elements) && elements <= kMostDim,
        where, ": a tensor of more elements than any file holds");
  }
  return shape;
}

TorchFile::TorchFile(std::span<const std::byte> bytes, std::string where)
    : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where_(std::move(where)) {
  open_zip();
  const auto order = members_.find("byteorder");
  require<CheckpointError>(order == members_.end() || order->second == "little", where_,
                           ": was saved by a big-endian machine, whose tensors Witan does not read");
  pickle_ = std::make_unique<Pickle>(member("data.pkl"), where_);
}

std::string_view TorchFile::member(const std::string& name) const {
  const auto found = members_.find(name);
  require<CheckpointError>(found != members_.end(), where_, " has no \"", clipped(name),
                           "\", which a file of torch.save() has: copy the file again");
  return found->second;
}

// The directory at the end lists the members; local headers are read only for their length.
void TorchFile::open_zip() {
  const auto damaged = [&](bool fine, const char* what) {
    require<CheckpointError>(fine, where_, " is no intact zip file as torch.save() writes it: ", what,
                             "; copy it again. Files of before PyTorch 1.6 must be saved anew by a later one");
  };
  damaged(bytes_.size() >= kEndBytes, "it is too short");
  const size_t search = bytes_.size() - std::min(bytes_.size(), kEndBytes + size_t{kMost16});
  const size_t end = bytes_.rfind(kEnd, bytes_.size() - kEndBytes);
  damaged(end != std::string_view::npos && end >= search, "it has no end record");
  uint64_t count = zip_number(bytes_, end + 10, 2), size = zip_number(bytes_, end + 12, 4),
           at = zip_number(bytes_, end + 16, 4);
  if (count == kMost16 || size == kMost32 || at == kMost32) {
    damaged(end >= kLocatorBytes && bytes_.substr(end - kLocatorBytes, 4) == kLocator64, "it has no 64-bit locator");
    const uint64_t end64 = zip_number(bytes_, end - kLocatorBytes + 8, 8);
    damaged(bytes_.size() >= kEnd64Bytes && end64 <= bytes_.size() - kEnd64Bytes && bytes_.substr(end64, 4) == kEnd64,
            "it has no 64-bit end record");
    count = zip_number(bytes_, end64 + 32, 8);
    size = zip_number(bytes_, end64 + 40, 8);
    at = zip_number(bytes_, end64 + 48, 8);
  }
  damaged(at <= bytes_.size() && size <= bytes_.size() - at && count <= size / kCentralBytes,
          "its directory lies outside it");
  std::string_view directory = bytes_.substr(at, size);
  for (uint64_t i = 0; i < count; ++i) {
    damaged(directory.size() >= kCentralBytes && directory.substr(0, 4) == kCentral, "its directory is damaged");
    const size_t length =
        kCentralBytes + zip_number(directory, 28, 2) + zip_number(directory, 30, 2) + zip_number(directory, 32, 2);
    damaged(length <= directory.size(), "its directory is damaged");
    open_member(directory.substr(0, length));
    directory.remove_prefix(length);
  }
}

void TorchFile::open_member(std::string_view header) {
  const size_t name_bytes = zip_number(header, 28, 2), extra_bytes = zip_number(header, 30, 2);
  const std::string_view name = header.substr(kCentralBytes, name_bytes);
  uint64_t stored = zip_number(header, 20, 4), size = zip_number(header, 24, 4), at = zip_number(header, 42, 4);
  std::string_view extra = header.substr(kCentralBytes + name_bytes, extra_bytes);
  while (extra.size() >= 4) {
    const size_t length = std::min<size_t>(zip_number(extra, 2, 2), extra.size() - 4);
    std::string_view field = extra.substr(4, length);
    if (zip_number(extra, 0, 2) == 1)  // 64-bit sizes that did not fit 32 bits
      for (uint64_t* value : {&size, &stored, &at})
        if (*value == kMost32 && field.size() >= 8) {
          *value = zip_number(field, 0, 8);
          field.remove_prefix(8);
        }
    extra.remove_prefix(4 + length);
  }
  const std::string label = clipped(name);
  require<CheckpointError>(zip_number(header, 10, 2) == 0 && stored == size, where_, ": \"", label,
                           "\" is compressed, which torch.save() never does");
  require<CheckpointError>(at <= bytes_.size() && bytes_.size() - at >= kLocalBytes && bytes_.substr(at, 4) == kLocal,
                           where_, ": \"", label, "\" is not where the zip's directory says: copy the file again");
  const uint64_t data = at + kLocalBytes + zip_number(bytes_, at + 26, 2) + zip_number(bytes_, at + 28, 2);
  require<CheckpointError>(data <= bytes_.size() && size <= bytes_.size() - data, where_, ": \"", label,
                           "\" ends beyond the file: copy it again");
  const size_t slash = name.find('/');
  members_.emplace(name.substr(slash == std::string_view::npos ? 0 : slash + 1), bytes_.substr(data, size));
}

std::optional<PlacedTensor> TorchFile::tensor(const PickleValue& value, const std::string& name) const {
  const PickleValue* callee = value.callee();
  if (!callee || !callee->is(Kind::global) || callee->text != "torch._utils") return std::nullopt;
  const std::string here = cat(where_, ": \"", clipped(name), '"');
  const auto& arguments = value.items[1]->items;
  if (callee->name == "_rebuild_parameter" && !arguments.empty() && arguments[0] != &value && arguments[0]->callee() &&
      arguments[0]->callee()->is_global("torch._utils", "_rebuild_tensor_v2"))
    return tensor(*arguments[0], name);
  require<CheckpointError>(callee->name == "_rebuild_tensor_v2", here, " is made by ", clipped(callee->name),
                           ", which Witan does not read: it reads plain dense tensors");
  require<CheckpointError>(arguments.size() >= 4 && arguments[0]->is(Kind::persistent) &&
                               arguments[0]->items[0]->is(Kind::list) && arguments[1]->is(Kind::integer),
                           here, " is no tensor as torch.save() writes it");
  const auto& storage = arguments[0]->items[0]->items;
  require<CheckpointError>(storage.size() >= 3 && storage[1]->is(Kind::global) && storage[2]->is(Kind::text), here,
                           " has no storage as torch.save() writes it");
  PlacedTensor placed;
  placed.info = {name, dtype_of_torch(storage[1]->name), shape_of_pickle(*arguments[2], here), 0};
  require<CheckpointError>(!placed.info.dtype.empty(), here, " is of ", clipped(storage[1]->name),
                           ", which Witan does not read");
  const Shape strides = shape_of_pickle(*arguments[3], here), &shape = placed.info.shape;
  require<CheckpointError>(strides.dims() == shape.dims(), here, " has other strides than dims");
  int64_t run = 1;
  for (int dim = shape.dims(); dim-- > 0; run *= shape[dim])
    require<CheckpointError>(shape[dim] <= 1 || shape.elements() == 0 || strides[dim] == run, here,
                             " is a view whose elements do not follow each other: save it with .contiguous()");
  const std::string_view held = member(cat("data/", storage[2]->text));
  const auto width = static_cast<uint64_t>(stored_element_bytes(placed.info.dtype, here));
  const uint64_t room = held.size() / width, first = static_cast<uint64_t>(arguments[1]->integer),
                 elements = static_cast<uint64_t>(shape.elements());
  require<CheckpointError>(arguments[1]->integer >= 0 && first <= room && elements <= room - first, here, ' ', shape,
                           " lies beyond its storage: copy the file again");
  placed.info.bytes = elements * width;
  placed.bytes = std::as_bytes(std::span(held.data() + first * width, placed.info.bytes));
  return placed;
}

}  // namespace witan
