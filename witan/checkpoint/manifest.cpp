#include "witan/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"

namespace witan {
namespace {

constexpr const char* kFormat = "witan-checkpoint";
constexpr int64_t kVersion = 1;  // frozen: a reader of version 1 must never meet another meaning under this number
constexpr size_t kMostFileName = 255;
constexpr size_t kMostTensorName = 1024;
constexpr size_t kHashDigits = 32;
constexpr std::string_view kHashKey = "xxh3_128";
constexpr std::string_view kSealHead = ",\n \"xxh3_128\": \"";  // then the hash of all before the comma
constexpr std::string_view kSealTail = "\"\n}\n";

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_file_name(std::string_view name) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMostFileName && name.front() != '.' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

Json json_of(const std::vector<Manifest::File>& files) {
  Json list = Json::array();
  for (const auto& file : files)
    list.push_back({{"file", file.name}, {"bytes", file.digest.bytes}, {kHashKey, file.digest.hash}});
  return list;
}

Json json_of(const Manifest::Entry& entry) {
  Json shape = Json::array(), parts = Json::array();
  for (int i = 0; i < entry.shape.dims(); ++i) shape.push_back(entry.shape[i]);
  for (const auto& part : entry.parts)
    parts.push_back({{"shard", part.shard}, {"first_row", part.first_row}, {"rows", part.rows}});
  return {{"dtype", safetensors_name(entry.dtype)}, {"shape", std::move(shape)}, {"parts", std::move(parts)}};
}

std::vector<Manifest::File> parse_files(const Json& list, std::string_view where) {
  std::vector<Manifest::File> files;
  for (const Json& file : list) {
    require<CheckpointError>(file.is_object(), where, ": a file must be an object, found ", file.type_name());
    const std::string& name = text_member(file, "file", where);
    const std::string& hash = text_member(file, kHashKey.data(), where);
    require<CheckpointError>(is_hash(hash), where, ": file \"", clipped(name), "\": \"", clipped(hash),
                             "\" is not an XXH3-128");
    files.push_back({name, {static_cast<uint64_t>(integer_member(file, "bytes", where)), hash}});
  }
  return files;
}

Manifest::Entry parse_entry(const Json& value, std::string_view where) {
  require<CheckpointError>(value.is_object(), where, ": expected an object, found ", value.type_name());
  Manifest::Entry entry;
  entry.dtype = dtype_from_safetensors(text_member(value, "dtype", where), where);
  entry.shape = shape_member(value, "shape", entry.dtype, where);
  for (const Json& part : array_member(value, "parts", where)) {
    require<CheckpointError>(part.is_object(), where, ": a part must be an object, found ", part.type_name());
    entry.parts.push_back({static_cast<size_t>(integer_member(part, "shard", where)),
                           integer_member(part, "first_row", where), integer_member(part, "rows", where, 1)});
  }
  return entry;
}

void check_files(const Manifest& manifest, std::string_view where) {
  std::set<std::string_view> names{kManifestName};
  for (const auto* list : {&manifest.shards, &manifest.files}) {
    for (const auto& file : *list) {
      require<CheckpointError>(is_file_name(file.name), where, ": \"", clipped(file.name),
                               "\" cannot be a file of a checkpoint: letters, digits, '.', '_' and '-' alone may stand "
                               "in its name, and no '.' at its beginning");
      require<CheckpointError>(names.insert(file.name).second, where, ": two files are named \"", file.name, '"');
    }
  }
}

void check_parts(const Manifest::Entry& entry, size_t shards, const std::string& where) {
  const int64_t rows = row_count(entry.shape);
  int64_t at = 0;
  for (const auto& part : entry.parts) {
    require<CheckpointError>(part.shard < shards, where, ": shard ", part.shard, " is not one of the ", shards);
    require<CheckpointError>(part.first_row <= at, where, ": rows ", at, " to ", part.first_row, " (of ", rows,
                             ") are in no part");
    require<CheckpointError>(part.first_row == at, where, ": the row ", part.first_row, " is in two parts");
    require<CheckpointError>(part.rows > 0 && part.rows <= rows - at, where, ": a part of ", part.rows, " rows at row ",
                             at, " passes the end, ", rows);
    at += part.rows;
  }
  require<CheckpointError>(at == rows, where, ": rows ", at, " to ", rows, " are in no part");
}

// The text of a sealed object, its hash checked.
Json unseal(std::string_view text, std::string_view where) {
  const size_t seal_bytes = kSealHead.size() + kHashDigits + kSealTail.size();
  require<CheckpointError>(text.size() > seal_bytes, where, ": ", text.size(), " bytes are too few for a manifest");
  const std::string_view body = text.substr(0, text.size() - seal_bytes);
  const std::string_view found = text.substr(body.size() + kSealHead.size(), kHashDigits);
  require<CheckpointError>(text.substr(body.size(), kSealHead.size()) == kSealHead && text.ends_with(kSealTail), where,
                           ": it does not end with its hash: it is truncated or was edited");
  const std::string expected = hash_hex(body.data(), body.size());
  require<CheckpointError>(found == expected, where, ": its XXH3-128 is ", expected, ", its last line says ",
                           clipped(found), ": it is damaged or was edited");
  return parse_object(text, where, 64);
}

}  // namespace

int64_t row_count(const Shape& shape) {
  return shape.dims() == 0 ? 1 : shape[0];
}

std::string part_name(const std::string& name, const Manifest::Entry& entry, const Manifest::Part& part) {
  if (part.rows == row_count(entry.shape)) return name;
  return cat(name, '[', part.first_row, ':', part.first_row + part.rows, ']');
}

void check_manifest(const Manifest& manifest, std::string_view where) {
  require<CheckpointError>(manifest.step >= 0, where, ": the step cannot be negative: ", manifest.step);
  require<CheckpointError>(manifest.scalars.is_object(), where, ": the scalars must be a JSON object, found ",
                           manifest.scalars.type_name());
  check_files(manifest, where);
  for (const auto& [name, entry] : manifest.tensors) {
    require<CheckpointError>(!name.empty() && name.size() <= kMostTensorName, where, ": a tensor's name has 1 to ",
                             kMostTensorName, " bytes: \"", clipped(name), '"');
    check_parts(entry, manifest.shards.size(), cat(where, ": tensor \"", clipped(name), '"'));
  }
}

std::string manifest_text(const Manifest& manifest) {
  Json tensors = Json::object();
  for (const auto& [name, entry] : manifest.tensors) tensors[name] = json_of(entry);
  return seal({{"format", kFormat},
               {"version", kVersion},
               {"step", manifest.step},
               {"shards", json_of(manifest.shards)},
               {"files", json_of(manifest.files)},
               {"tensors", std::move(tensors)},
               {"scalars", manifest.scalars}});
}

Manifest parse_manifest(std::string_view text, std::string_view where) {
  const Json content = unseal(text, where);
  const std::string& format = text_member(content, "format", where);
  require<CheckpointError>(format == kFormat, where, ": the format is \"", clipped(format), "\", expected \"", kFormat,
                           '"');
  const int64_t version = integer_member(content, "version", where);
  require<CheckpointError>(version == kVersion, where, ": version ", version, " of the format, this program reads ",
                           kVersion, ": use the program that wrote it, or a newer one");
  Manifest manifest;
  manifest.step = integer_member(content, "step", where);
  manifest.shards = parse_files(array_member(content, "shards", where), where);
  manifest.files = parse_files(array_member(content, "files", where), where);
  for (const auto& [name, entry] : object_member(content, "tensors", where).items())
    manifest.tensors.emplace(name, parse_entry(entry, cat(where, ": tensor \"", clipped(name), '"')));
  manifest.scalars = object_member(content, "scalars", where);
  check_manifest(manifest, where);
  return manifest;
}

std::string seal(const Json& content) {
  std::string text = content.dump(1);
  require<CheckpointError>(content.is_object() && !content.empty(), "a manifest must be an object with members");
  text.resize(text.size() - std::string_view("\n}").size());
  return cat(text, kSealHead, hash_hex(text.data(), text.size()), kSealTail);
}

}  // namespace witan
