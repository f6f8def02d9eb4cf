#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/gguf/gguf_weights.h"

namespace witan {
namespace {

constexpr const char *kNumber = "split.no", *kCount = "split.count", *kTensors = "split.tensors.count";

// The fields of a name like model-00002-of-00003.gguf: "model", 2 and 3.
struct PartName {
  fs::path folder;
  std::string model;
  int64_t number = 1, count = 1;

  fs::path part(int64_t which) const { return folder / fmt::format("{}-{:05}-of-{:05}.gguf", model, which, count); }
};

std::optional<PartName> part_name(const fs::path& path) {
  static const std::regex pattern("(.*)-([0-9]{5})-of-([0-9]{5})\\.gguf");
  std::smatch parts;
  const std::string name = path.filename().string();
  if (!std::regex_match(name, parts, pattern)) return std::nullopt;
  return PartName{path.parent_path(), parts[1], std::stoll(parts[2]), std::stoll(parts[3])};
}

std::vector<fs::path> gguf_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".gguf" && entry.is_regular_file(error)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// The file of the only model in a folder, or any part of it.
fs::path only_model(const fs::path& folder) {
  std::set<std::string> models;
  const std::vector<fs::path> files = gguf_files_in(folder);
  for (const fs::path& file : files) {
    const auto name = part_name(file);
    models.insert(name ? name->model : file.stem().string());
  }
  require<CheckpointError>(
      models.size() == 1, folder.string(), " has ",
      models.empty() ? "no GGUF file" : "several models: ", fmt::format("{}", fmt::join(models, ", ")),
      models.empty() ? "" : "; give the file of one, or its first part");
  return files.front();
}

}  // namespace

GgufParts::GgufParts(const fs::path& path) {
  std::error_code error;
  const fs::path given = fs::is_directory(path, error) ? only_model(path) : path;
  const GgufFile& first = parts_.emplace_back(given);
  const int64_t count = first.metadata().integer(kCount).value_or(1);
  if (count > 1) {
    const int64_t number = first.metadata().integer(kNumber).value_or(0) + 1;
    const auto name = part_name(given);
    require<CheckpointError>(name && name->number == number && name->count == count, given.string(), " is part ",
                             number, " of ", count,
                             " of a model, and the others are found by its name: call it as it was called, ",
                             fmt::format("NAME-{:05}-of-{:05}.gguf", number, count));
    if (name->number != 1) parts_.clear();
    for (int64_t part = 1; part <= name->count; ++part) {
      const fs::path file = name->part(part);
      require<CheckpointError>(fs::exists(file, error), file.string(), " is missing: the model is in ", name->count,
                               " parts, of which ", given.filename().string(),
                               " is one; put all of them into one folder");
      if (part > static_cast<int64_t>(parts_.size())) parts_.emplace_back(file);
      check_part(parts_.back(), part, name->count);
    }
  }
  for (const GgufFile& part : parts_)
    for (const GgufFile::Placed& tensor : part.tensors()) {
      require<CorruptionError>(index_.emplace(tensor.info.name, tensors_.size()).second, part.path().string(),
                               ": the tensor \"", clipped(tensor.info.name), "\" is in another part too");
      tensors_.push_back(tensor);
    }
  const auto all = static_cast<int64_t>(tensors_.size()), said = metadata().integer(kTensors).value_or(all);
  require<CorruptionError>(count == 1 || said == all, this->path().string(), ": ", kTensors, " = ", said,
                           ", but its parts have ", all, " tensors: they are not of one model; download them again");
}

void GgufParts::check_part(const GgufFile& part, int64_t number, int64_t count) const {
  const GgufMetadata& keys = part.metadata();
  require<CorruptionError>(
      keys.integer(kNumber).value_or(-1) == number - 1 && keys.integer(kCount).value_or(-1) == count,
      part.path().string(), " is part ", number, " of ", count, " by its name, but says ", kNumber, " = ",
      keys.integer(kNumber).value_or(-1), " (from 0 on) and ", kCount, " = ", keys.integer(kCount).value_or(-1),
      ": it was renamed, or is another model's");
}

const GgufFile::Placed* GgufParts::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

bool is_gguf_model(const fs::path& path) {
  if (is_gguf_file(path)) return true;
  std::error_code error;
  if (!fs::is_directory(path, error) || fs::exists(path / "config.json", error)) return false;
  return !gguf_files_in(path).empty();
}

}  // namespace witan
