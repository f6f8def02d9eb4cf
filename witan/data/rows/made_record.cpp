#include "witan/data/rows/made_record.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/files/output_file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr const char* kMadeFormat = "witan-made";
constexpr int kMadeVersion = 1;

// The record if it is one that write() has made, else null.
nlohmann::json read_record(const fs::path& path) try {
  if (!fs::exists(path)) return nullptr;
  nlohmann::json record = parse_json(read_file(path), path.string());
  const bool known = record.at("format") == kMadeFormat && record.at("version") == kMadeVersion;
  for (const char* list : {"outputs", "beside"})
    for (const nlohmann::json& file : record.at(list)) {
      file.at("name").get_ref<const std::string&>();
      file.at("bytes").get<uint64_t>();
    }
  return known && record.contains("key") && record.contains("made") ? record : nlohmann::json();
} catch (const nlohmann::json::exception&) {
  return nullptr;
} catch (const CorruptionError&) {
  return nullptr;
}

bool is_as_left(const fs::path& file, const nlohmann::json& was) {
  std::error_code absent;
  return fs::file_size(file, absent) == was.at("bytes").get<uint64_t>() && !absent;
}

}  // namespace

std::string stem_of_rows(const fs::path& path) {
  const std::string name = path.string();
  constexpr std::string_view kSuffix = ".jsonl";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

fs::path quarantine_beside(const fs::path& output) {
  return stem_of_rows(output) + ".quarantine.jsonl";
}

fs::path hidden_beside(const fs::path& output, const std::string& what) {
  const fs::path stem = fs::absolute(stem_of_rows(output));
  return stem.parent_path() / cat(".", stem.filename().string(), what);
}

void require_no_source(const std::vector<fs::path>& outputs, const std::vector<Source>& sources) {
  std::error_code none;
  for (const fs::path& output : outputs) {
    if (output.empty() || !fs::exists(output, none)) continue;
    for (const Source& source : sources)
      require<UsageError>(!fs::equivalent(output, source.path, none), output.string(),
                          " is one of the inputs, and would be overwritten: name another file");
  }
}

MadeRecord::MadeRecord(const fs::path& output)
    : path_(hidden_beside(output, ".made.json")), record_(read_record(path_)) {}

// Paths are relative to the record, so that a folder may be moved with its contents.
std::string MadeRecord::name_in_record(const fs::path& file) const {
  const fs::path folder = path_.parent_path().lexically_normal();
  return replace_invalid_utf8(fs::absolute(file).lexically_normal().lexically_proximate(folder).string());
}

nlohmann::json MadeRecord::describe(const std::vector<fs::path>& files) const {
  nlohmann::json list = nlohmann::json::array();
  for (const fs::path& file : files)
    if (fs::exists(file)) list.push_back({{"name", name_in_record(file)}, {"bytes", fs::file_size(file)}});
  return list;
}

nlohmann::json MadeRecord::find(const nlohmann::json& key) const {
  if (record_.is_null() || record_.at("key") != key) return nullptr;
  for (const nlohmann::json& file : record_.at("outputs"))
    if (!is_as_left(path_.parent_path() / file.at("name").get<std::string>(), file)) return nullptr;
  return record_.at("made");
}

bool MadeRecord::is_own(const fs::path& file) const {
  if (record_.is_null()) return false;
  const std::string name = name_in_record(file);
  const auto same = [&](const nlohmann::json& was) { return was.at("name") == name && is_as_left(file, was); };
  return std::ranges::any_of(record_.at("outputs"), same) || std::ranges::any_of(record_.at("beside"), same);
}

void MadeRecord::require_free(const std::vector<fs::path>& outputs, const std::vector<fs::path>& beside) const {
  for (const fs::path& file : outputs) refuse_existing(file);
  for (const fs::path& file : beside)
    if (!is_own(file)) refuse_existing(file);
}

void MadeRecord::write(const nlohmann::json& key, const nlohmann::json& made, const std::vector<fs::path>& outputs,
                       const std::vector<fs::path>& beside) const {
  const nlohmann::json record = {{"format", kMadeFormat}, {"version", kMadeVersion},      {"key", key},
                                 {"made", made},          {"outputs", describe(outputs)}, {"beside", describe(beside)}};
  write_file_atomically(path_, record.dump(1) + "\n");
}

}  // namespace witan
