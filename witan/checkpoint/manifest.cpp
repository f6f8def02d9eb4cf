#include "witan/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"

namespace witan {
namespace {

constexpr const char* kFormat = "witan-checkpoint";
constexpr int64_t kVersion = 2;      // frozen: a reader of a version must never meet another meaning under its number
constexpr int64_t kRowsVersion = 1;  // in which parts were rows; still read
constexpr size_t kMostFileName = 255;
constexpr size_t kMostTensorName = 1024;
constexpr size_t kHashDigits = 32;
constexpr std::string_view kHashKey = "xxh3_128";
constexpr std::string_view kSealHead = ",\n \"xxh3_128\": \"";  // then the hash of all before the comma
constexpr std::string_view kSealTail = "\"\n}\n";

constexpr std::string_view kMasterPrefix = "master/";  // "master/NAME" is the float32 master of parameter NAME

// A manifest marks buffers alone, and distinguishes all else by name: an optimizer's state is STATE/NAME.
StateTensor::Kind kind_of(std::string_view name, bool buffer) {
  if (buffer) return StateTensor::Kind::buffer;
  if (name.starts_with(kMasterPrefix)) return StateTensor::Kind::master;
  return name.find('/') == std::string_view::npos ? StateTensor::Kind::value : StateTensor::Kind::optimizer;
}

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
  for (const auto& part : entry.parts) parts.push_back(json_of(part));
  Json json = {{"dtype", safetensors_name(entry.dtype)}, {"shape", std::move(shape)}, {"parts", std::move(parts)}};
  if (entry.kind == StateTensor::Kind::buffer) json["buffer"] = true;
  return json;
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

Region region_of_rows(const Json& part, const Shape& shape, std::string_view where) {
  const int64_t all = shape.dims() == 0 ? 1 : shape[0], first = integer_member(part, "first_row", where, 0, all);
  return rows_of(shape, first, integer_member(part, "rows", where, 1, all - first));
}

Manifest::Entry parse_entry(std::string_view name, const Json& value, int64_t version, std::string_view where) {
  require<CheckpointError>(value.is_object(), where, ": expected an object, found ", value.type_name());
  Manifest::Entry entry;
  entry.dtype = dtype_from_safetensors(text_member(value, "dtype", where), where);
  entry.shape = shape_member(value, "shape", entry.dtype, where);
  for (const Json& part : array_member(value, "parts", where)) {
    require<CheckpointError>(part.is_object(), where, ": a part must be an object, found ", part.type_name());
    const auto shard = static_cast<size_t>(integer_member(part, "shard", where));
    const Region region = version == kRowsVersion ? region_of_rows(part, entry.shape, where)
                                                  : region_member(part, entry.shape.elements(), where);
    if (region.elements() > 0) entry.parts.push_back({shard, region});
  }
  const Json buffer = value.value("buffer", Json(false));
  require<CheckpointError>(buffer.is_boolean(), where, ": buffer must be true or false, found ", buffer.type_name());
  entry.kind = kind_of(name, buffer.get<bool>());
  return entry;
}

void check_files(const Manifest& manifest, std::string_view where) {
  std::set<std::string_view> names{kManifestName};
  for (const auto* list : {&manifest.shards, &manifest.files}) {
    for (const auto& file : *list) {
      require<CheckpointError>(is_file_name(file.name), where, ": \"", clipped(file.name),
                               "\" is not a valid name of a checkpoint file: use only letters, digits, '.', '_' and "
                               "'-', and no '.' at the start");
      require<CheckpointError>(names.insert(file.name).second, where, ": two files are named \"", file.name, '"');
    }
  }
}

void check_parts(const Manifest::Entry& entry, size_t shards, const std::string& where) {
  std::vector<Region> regions;
  for (const auto& part : entry.parts) {
    require<CheckpointError>(part.shard < shards, where, ": shard ", part.shard, " is not one of the ", shards);
    regions.push_back(part.region);
  }
  const std::string fault = gap_or_overlap(std::move(regions), entry.shape.elements());
  require<CheckpointError>(fault.empty(), where, ": ", fault);
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

Manifest::Tensors::const_iterator Manifest::master_or_value(const std::string& parameter) const {
  const auto master = tensors.find(cat(kMasterPrefix, parameter));
  return master != tensors.end() ? master : tensors.find(parameter);
}

Json json_of(const Manifest::Part& part) {
  const Region& region = part.region;
  Json json = {{"shard", part.shard}, {"first", region.first()}, {"length", region.length()}};
  if (region.contiguous()) return json;
  json["runs"] = region.runs();
  json["distance"] = region.distance();
  return json;
}

Region region_member(const Json& part, int64_t elements, std::string_view where) {
  require<CheckpointError>(elements > 0, where, ": a tensor without elements cannot list parts");
  const auto number = [&](const char* key, int64_t least) { return integer_member(part, key, where, least, elements); };
  const int64_t first = number("first", 0), length = number("length", 1);
  const bool one = !part.contains("runs");
  const int64_t runs = one ? 1 : number("runs", 1), distance = one ? 0 : number("distance", length);
  // Neither sum nor product passes 63 bits.
  const bool fits = length <= elements - first && (runs == 1 || runs - 1 <= (elements - first - length) / distance);
  require<CheckpointError>(fits, where, ": a part of ", runs, " x ", length, " elements from ", first,
                           " on exceeds the tensor's end, ", elements);
  return {first, length, runs, distance};
}

std::string part_name(const std::string& name, const Shape& global, const Region& region) {
  if (region.elements() == global.elements()) return name;
  if (!region.contiguous())
    return cat(name, '[', region.first(), '+', region.length(), 'x', region.runs(), '/', region.distance(), ']');
  const int64_t row = global.elements() / global[0];
  if (region.first() % row == 0 && region.length() % row == 0)
    return cat(name, '[', region.first() / row, ':', region.end() / row, ']');
  return cat(name, '[', region.first(), '+', region.length(), ']');
}

Shape part_shape(const Shape& global, const Region& region) {
  if (region.elements() == global.elements()) return global;
  const int64_t row = global.elements() / global[0];
  const bool rows = region.contiguous() && region.first() % row == 0 && region.length() % row == 0;
  return rows ? global.with(0, region.length() / row) : Shape{region.elements()};
}

std::string gap_or_overlap(std::vector<Region> regions, int64_t elements) {
  std::ranges::sort(regions, {},
                    [](const Region& r) { return std::tuple(r.contiguous(), r.distance(), r.runs(), r.first()); });
  std::vector<Region> pieces;  // each of one run
  for (size_t i = 0; i < regions.size();) {
    const Region& one = regions[i++];
    if (one.contiguous()) {
      pieces.push_back(one);
      continue;
    }
    int64_t filled = one.length();
    for (; filled < one.distance() && i < regions.size(); filled += regions[i++].length())
      if (regions[i].runs() != one.runs() || regions[i].distance() != one.distance() ||
          regions[i].first() != one.first() + filled)
        break;
    if (filled != one.distance())
      return cat("the gaps between the runs of the part ", one, " are not filled by parts of the same runs");
    pieces.emplace_back(one.first(), one.distance() * one.runs());
  }
  std::ranges::sort(pieces, {}, &Region::first);
  int64_t at = 0;
  for (const Region& piece : pieces) {
    if (piece.first() > at) return cat("elements ", at, " to ", piece.first(), " (of ", elements, ") are in no part");
    if (piece.first() < at) return cat("the element ", piece.first(), " is in two parts");
    at = piece.end();
  }
  return at == elements ? "" : cat("elements ", at, " to ", elements, " are in no part");
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
  require<CheckpointError>(version == kVersion || version == kRowsVersion, where, ": version ", version,
                           " of the format, this program reads ", kRowsVersion, " and ", kVersion,
                           ": use the program that wrote it, or a newer one");
  Manifest manifest;
  manifest.step = integer_member(content, "step", where);
  manifest.shards = parse_files(array_member(content, "shards", where), where);
  manifest.files = parse_files(array_member(content, "files", where), where);
  for (const auto& [name, entry] : object_member(content, "tensors", where).items())
    manifest.tensors.emplace(name, parse_entry(name, entry, version, cat(where, ": tensor \"", clipped(name), '"')));
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
