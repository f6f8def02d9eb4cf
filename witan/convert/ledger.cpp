#include "witan/convert/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/formats/gguf.h"

namespace witan {
namespace {

constexpr const char* kLedgerFormat = "witan-ledger";
constexpr int64_t kLedgerVersion = 1;
constexpr int kLedgerDepth = 8;
constexpr std::array<std::pair<ExpertStorage, std::string_view>, 5> kStorages{
    {{ExpertStorage::any, "any"},
     {ExpertStorage::single, "single"},
     {ExpertStorage::fused, "fused"},
     {ExpertStorage::fused_in_out, "fused_in_out"},
     {ExpertStorage::mxfp4, "mxfp4"}}};

// The bytes of a block and its number of elements; types without blocks have blocks of one element.
std::pair<int64_t, int64_t> bytes_of_elements(std::string_view dtype, const std::string& where) {
  if (const GgmlType* type = ggml_type(dtype); type != nullptr && type->block > 1) return {type->bytes, type->block};
  return {stored_element_bytes(dtype, where), 1};
}

Json json_of(const LedgerEntry& entry) {
  Json shape = Json::array();
  for (int dim = 0; dim < entry.shape.dims(); ++dim) shape.push_back(entry.shape[dim]);
  Json json = {{"name", entry.name}, {"dtype", entry.dtype}, {"shape", shape}, {"xxh3_128", entry.hash}};
  if (!entry.others.empty()) json["others"] = entry.others;
  if (!entry.note.empty()) json["note"] = entry.note;
  return json;
}

LedgerEntry entry_from(const Json& json, const std::string& where) {
  LedgerEntry entry{text_member(json, "name", where), text_member(json, "dtype", where), {}, {}, {}, {}};
  entry.shape = shape_member(json, "shape", bytes_of_elements(entry.dtype, where).first, where);
  entry.hash = text_member(json, "xxh3_128", where);
  if (json.contains("others"))
    for (const Json& other : array_member(json, "others", where)) {
      require<CheckpointError>(other.is_string(), where, ": \"others\" must list names");
      entry.others.push_back(other.get<std::string>());
    }
  if (json.contains("note")) entry.note = text_member(json, "note", where);
  return entry;
}

std::string side_summary(const char* what, const std::string& format, const std::vector<LedgerEntry>& entries) {
  int64_t elements = 0, bytes = 0;
  std::vector<std::string> dtypes;
  for (const LedgerEntry& entry : entries) {
    elements += entry.shape.elements();
    const auto [width, count] = bytes_of_elements(entry.dtype, "ledger");
    bytes += entry.shape.elements() / count * width;
    if (std::ranges::find(dtypes, entry.dtype) == dtypes.end()) dtypes.push_back(entry.dtype);
  }
  std::string kinds;
  for (const std::string& dtype : dtypes) kinds += (kinds.empty() ? "" : ", ") + dtype;
  return cat(what, entries.size(), " tensors of ", format, ", ", elements, " elements (", kinds, "), ",
             format_bytes(static_cast<double>(bytes)), "\n");
}

// One line for each note, with the first tensor that has it; the file lists all tensors.
std::string notes_summary(const std::vector<LedgerEntry>& entries) {
  std::vector<std::pair<const LedgerEntry*, int64_t>> notes;  // with the number of further tensors
  for (const LedgerEntry& entry : entries) {
    if (entry.note.empty()) continue;
    const auto known = std::ranges::find_if(notes, [&](const auto& one) { return one.first->note == entry.note; });
    if (known == notes.end())
      notes.emplace_back(&entry, 0);
    else
      ++known->second;
  }
  std::string text;
  for (const auto& [entry, more] : notes)
    text += cat("             ", entry->name, more > 0 ? cat(" and ", more, " more") : "", ": ", entry->note, "\n");
  return text;
}

// One line for each kind of matrix: its type, its size, and the error.
std::string quantised_summary(const std::vector<QuantisedKind>& quantised) {
  std::string text;
  for (const QuantisedKind& kind : quantised)
    text += fmt::format("{:<12} {:<30} {:<8} {:.2f} bits a weight, relative RMS error {:.3g} %\n",
                        text.empty() ? "quantised" : "", kind.matrices, kind.type,
                        8 * static_cast<double>(kind.bytes) / static_cast<double>(kind.elements),
                        100 * kind.error.relative());
  return text;
}

std::string calibration_summary(const Ledger& ledger) {
  constexpr size_t kNamed = 3;
  if (ledger.calibration_tokens == 0) return "";
  std::string text = cat("calibrated   with ", ledger.calibration_tokens, " tokens");
  const auto& left = ledger.uncalibrated;
  if (!left.empty()) {
    text += cat(", except ", left.size(), " of the matrices, which no token reached: ");
    for (size_t i = 0; i < std::min(left.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + left[i];
    if (left.size() > kNamed) text += cat(" and ", left.size() - kNamed, " more");
  }
  return text + "\n";
}

// Copies a file without holding it in memory.
void copy_large_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) throw_failed(cat("cannot copy ", from.string(), " to ", to.string()), error);
}

}  // namespace

std::string Ledger::summary() const {
  std::string text = side_summary("source       ", from, source) + side_summary("target       ", to, target);
  int64_t moved = 0;
  for (const LedgerEntry& entry : source) moved += entry.others.empty() ? 0 : 1;
  text += notes_summary(source) + notes_summary(target);
  const int64_t noted = static_cast<int64_t>(source.size()) - moved;
  text += noted == 0 ? cat("checked      all ", moved, " tensors were written\n")
                     : cat("checked      ", moved, " of ", source.size(), " tensors were written; the other ", noted,
                           noted == 1 ? " is" : " are", " explained above\n");
  text += quantised_summary(quantised) + calibration_summary(*this);
  if (!files.empty()) {
    text += "carried      ";
    for (size_t i = 0; i < files.size(); ++i) text += (i == 0 ? "" : ", ") + files[i].name;
    text += "\n";
  }
  return text;
}

std::string Ledger::text() const {
  Json json = {{"format", kLedgerFormat},
               {"version", kLedgerVersion},
               {"from", from},
               {"to", to},
               {"architecture", architecture},
               {"bare_names", style.bare},
               {"tied_copy", style.tied_copy},
               {"mtp_copies", style.mtp_copies}};
  json["experts"] =
      std::ranges::find(kStorages, style.storage, &std::pair<ExpertStorage, std::string_view>::first)->second;
  for (const auto& [key, entries] : {std::pair{"source", &source}, std::pair{"target", &target}}) {
    json[key] = Json::array();
    for (const LedgerEntry& entry : *entries) json[key].push_back(json_of(entry));
  }
  json["files"] = Json::array();
  for (const LedgerFile& file : files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}});
  for (const QuantisedKind& kind : quantised)
    json["quantised"].push_back({{"matrices", kind.matrices},
                                 {"dtype", kind.type},
                                 {"elements", kind.elements},
                                 {"bytes", kind.bytes},
                                 {"relative_rms_error", kind.error.relative()}});
  if (calibration_tokens > 0) json["calibration"] = {{"tokens", calibration_tokens}, {"uncalibrated", uncalibrated}};
  return json.dump(1) + "\n";
}

Ledger parse_ledger(std::string_view text, const std::string& where) {
  const Json json = parse_object(text, where, kLedgerDepth);
  require<CheckpointError>(text_member(json, "format", where) == kLedgerFormat, where, " is no ledger of a conversion");
  integer_member(json, "version", where, kLedgerVersion, kLedgerVersion);
  Ledger ledger{text_member(json, "from", where),
                text_member(json, "to", where),
                text_member(json, "architecture", where),
                {},
                {},
                {},
                {}};
  const std::string& experts = text_member(json, "experts", where);
  const auto* storage = std::ranges::find(kStorages, experts, &std::pair<ExpertStorage, std::string_view>::second);
  require<CheckpointError>(storage != kStorages.end(), where, ": experts = ", clipped(experts), " is unknown");
  ledger.style.storage = storage->first;
  for (const auto& [key, flag] :
       {std::pair{"bare_names", &ledger.style.bare}, std::pair{"tied_copy", &ledger.style.tied_copy}}) {
    const Json& value = member(json, key, where);
    require<CheckpointError>(value.is_boolean(), where, ": \"", key, "\" must be true or false");
    *flag = value.get<bool>();
  }
  if (const auto copies = json.find("mtp_copies"); copies != json.end())  // absent in older ledgers
    ledger.style.mtp_copies = copies->is_boolean() && copies->get<bool>();
  for (const Json& entry : array_member(json, "source", where)) ledger.source.push_back(entry_from(entry, where));
  for (const Json& entry : array_member(json, "target", where)) ledger.target.push_back(entry_from(entry, where));
  for (const Json& file : array_member(json, "files", where))
    ledger.files.push_back({text_member(file, "name", where),
                            static_cast<uint64_t>(integer_member(file, "bytes", where)),
                            text_member(file, "xxh3_128", where)});
  return ledger;
}

std::vector<LedgerFile> copy_companions(const fs::path& from, const std::vector<std::string>& names,
                                        const fs::path& to) {
  std::vector<LedgerFile> copied;
  for (const std::string& name : names) {
    const std::string bytes = read_file(from / name);
    fs::create_directories(to);
    write_file_atomically(to / name, bytes);
    copied.push_back({name, bytes.size(), hash_hex(bytes.data(), bytes.size())});
  }
  return copied;
}

void inherit_companions(const fs::path& run, const fs::path& to) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run / kCompanionFolder, error))
    if (entry.is_regular_file(error)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  if (std::erase(names, kSideTensors) > 0) {
    fs::create_directories(to / kCompanionFolder);
    copy_large_file(run / kCompanionFolder / kSideTensors, to / kCompanionFolder / kSideTensors);
  }
  copy_companions(run / kCompanionFolder, names, to / kCompanionFolder);
  if (fs::is_regular_file(run / kLedgerName, error)) copy_companions(run, {kLedgerName}, to);
}

}  // namespace witan
