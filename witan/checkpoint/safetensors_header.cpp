#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"
#include "witan/checkpoint/safetensors.h"

namespace witan {
namespace {

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's limit
constexpr uint64_t kAlignment = 8;                  // alignment of the data's start in the file
constexpr int kHeaderDepth = 4;                     // header, tensor, list, and one spare level
constexpr const char* kMetadata = "__metadata__";

// A dtype of the format: bytes per element, and its name in messages.
struct StoredDType {
  std::string_view name;
  int64_t bytes;
  std::string_view words;
};
constexpr std::array<StoredDType, 15> kDTypes{{{"F64", 8, "float64"},
                                               {"F32", 4, "float32"},
                                               {"F16", 2, "float16"},
                                               {"BF16", 2, "bfloat16"},
                                               {"F8_E4M3", 1, "float8 (E4M3)"},
                                               {"F8_E5M2", 1, "float8 (E5M2)"},
                                               {"F8_E8M0", 1, "float8 (E8M0)"},
                                               {"I64", 8, "int64"},
                                               {"I32", 4, "int32"},
                                               {"I16", 2, "int16"},
                                               {"I8", 1, "int8"},
                                               {"U8", 1, "uint8"},
                                               {"U16", 2, "uint16"},
                                               {"U32", 4, "uint32"},
                                               {"BOOL", 1, "bool"}}};

std::string_view words_of(std::string_view dtype) {
  const auto* found = std::ranges::find(kDTypes, dtype, &StoredDType::name);
  return found == kDTypes.end() ? dtype : found->words;
}

// One tensor as the header has it: offsets are relative to the start of the data.
struct Placed {
  StoredTensor info;
  uint64_t begin = 0, end = 0;
};

Placed parse_entry(const std::string& name, const Json& entry, std::string_view file, const ElementBytes& bytes_of) {
  const std::string where = cat(file, ": tensor \"", clipped(name), '"');
  require<CheckpointError>(entry.is_object(), where, ": expected an object, found ", entry.type_name());
  const std::string& dtype = text_member(entry, "dtype", where);
  const int64_t element = bytes_of(dtype, where);
  Placed placed{{name, dtype, shape_member(entry, "shape", element, where)}};
  placed.info.bytes = static_cast<uint64_t>(placed.info.shape.elements() * element);
  const Json& offsets = array_member(entry, "data_offsets", where);
  require<CheckpointError>(offsets.size() == 2, where, ": \"data_offsets\" must be [begin, end], found ",
                           offsets.size(), " values");
  placed.begin = static_cast<uint64_t>(integer_from(offsets[0], "begin", where));
  placed.end = static_cast<uint64_t>(integer_from(offsets[1], "end", where));
  const uint64_t expected = placed.info.bytes;
  require<CheckpointError>(placed.end >= placed.begin && placed.end - placed.begin == expected, where, ": ",
                           words_of(dtype), " ", placed.info.shape, " has ", expected,
                           " bytes, its \"data_offsets\" are [", placed.begin, ", ", placed.end, "]");
  return placed;
}

std::map<std::string, std::string> parse_metadata(const Json& value, std::string_view file) {
  require<CheckpointError>(value.is_object(), file, ": \"", kMetadata, "\" must be an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    require<CheckpointError>(text.is_string(), file, ": \"", kMetadata, "\": \"", clipped(key), "\" must be a string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// Checks that the tensors cover the data: each must begin where the previous one ends.
void check_cover(const std::vector<Placed>& placed, uint64_t data, std::string_view file) {
  uint64_t at = 0;
  for (const Placed& tensor : placed) {
    require<CheckpointError>(tensor.begin == at, file, ": tensor \"", clipped(tensor.info.name), "\" begins at byte ",
                             tensor.begin, " of the data, expected ", at, ": there is ",
                             tensor.begin > at ? "a hole" : "an overlap");
    at = tensor.end;
  }
  require<CheckpointError>(at == data, file, ": the header describes ", at, " bytes of data, the file holds ", data,
                           data < at ? ": it is truncated; copy it again" : ": it has bytes that belong to no tensor");
}

std::string_view header_text(std::span<const std::byte> bytes, std::string_view file) {
  uint64_t length = 0;
  require<CheckpointError>(bytes.size() >= sizeof length, file, ": ", bytes.size(),
                           " bytes are too few for a safetensors file; copy it again");
  std::memcpy(&length, bytes.data(), sizeof length);
  require<CheckpointError>(length <= kMostHeaderBytes, file, ": a header of ", length, " bytes, at most ",
                           kMostHeaderBytes, " are allowed: this is not a safetensors file, or it is damaged");
  require<CheckpointError>(length <= bytes.size() - sizeof length, file, ": a header of ", length,
                           " bytes, the file holds ", bytes.size() - sizeof length,
                           " after its length: it is truncated; copy it again");
  return {reinterpret_cast<const char*>(bytes.data()) + sizeof length, length};
}

// A header that is not JSON means that the file is of another kind.
Json header_object(std::string_view text, std::string_view file) {
  try {
    return parse_object(text, file, kHeaderDepth);
  } catch (const CorruptionError& error) {
    throw CorruptionError(cat(error.what(),
                              ": the header of a safetensors file is JSON, so this is another kind of file, or it is "
                              "damaged: copy it again, or restore it from a copy"));
  }
}

}  // namespace

int64_t stored_element_bytes(std::string_view dtype, std::string_view where) {
  const auto* found = std::ranges::find(kDTypes, dtype, &StoredDType::name);
  require<CheckpointError>(found != kDTypes.end(), where, ": unsupported dtype \"", clipped(dtype), "\"");
  return found->bytes;
}

// Keys are in file order, as other programs write them.
std::string safetensors_header(const std::vector<StoredTensor>& order, std::map<std::string, std::string> metadata,
                               std::string_view where) {
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header;
  header[kMetadata] = metadata;
  std::set<std::string_view> names{kMetadata};
  std::string json = header.dump();
  json.pop_back();  // removes the closing brace: entries are appended one by one, since looking keys up in an ordered
                    // object is slow
  uint64_t at = 0;
  for (const StoredTensor& info : order) {
    require<CheckpointError>(names.insert(info.name).second, where, ": two tensors are named \"", clipped(info.name),
                             "\"");
    nlohmann::ordered_json entry = {{"dtype", info.dtype}, {"shape", nlohmann::ordered_json::array()}};
    for (int i = 0; i < info.shape.dims(); ++i) entry["shape"].push_back(info.shape[i]);
    const uint64_t end = at + info.bytes;
    entry["data_offsets"] = {at, end};
    json += cat(',', nlohmann::json(info.name).dump(), ':', entry.dump());
    at = end;
  }
  json += '}';
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  require<CheckpointError>(json.size() <= kMostHeaderBytes, where, ": the header of ", order.size(), " tensors has ",
                           json.size(), " bytes; the format allows ", kMostHeaderBytes);
  const uint64_t length = json.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + json;
}

std::vector<PlacedTensor> parse_safetensors(std::span<const std::byte> file, std::string_view where,
                                            const ElementBytes& bytes_of,
                                            std::map<std::string, std::string>& metadata) {
  const std::string_view text = header_text(file, where);
  const auto data = file.subspan(sizeof(uint64_t) + text.size());
  const Json header = header_object(text, where);
  std::vector<Placed> placed;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata)
      metadata = parse_metadata(entry, where);
    else
      placed.push_back(parse_entry(name, entry, where, bytes_of));
  }
  std::ranges::sort(placed, {}, [](const Placed& tensor) { return std::pair{tensor.begin, tensor.end}; });
  check_cover(placed, data.size(), where);
  std::vector<PlacedTensor> tensors;
  for (Placed& tensor : placed)
    tensors.push_back({std::move(tensor.info), data.subspan(tensor.begin, tensor.end - tensor.begin)});
  return tensors;
}

}  // namespace witan
