#include "witan/train/rollouts/unfinished.h"

#include <algorithm>

#include "witan/base/files/line_file.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr std::string_view kUnfinishedAnswers = "unfinished-";
constexpr int64_t kHashedElements = 4096;  // of each tensor

std::vector<fs::path> unfinished_files(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(kUnfinishedAnswers) && entry.path().extension() == ".jsonl")
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::string read_unfinished(const fs::path& folder, const std::string& identity) {
  std::string lines;
  for (const fs::path& file : unfinished_files(folder)) {
    LinesForward reader(file);
    if (!reader.next() || reader.line() != identity) continue;
    while (reader.next()) lines.append(reader.line()) += '\n';
  }
  return lines;
}

void remove_unfinished(const fs::path& folder) {
  for (const fs::path& file : unfinished_files(folder)) fs::remove(file);
}

std::unique_ptr<AppendFile> open_unfinished(const fs::path& folder, int rank, const std::string& identity,
                                            const std::vector<Rollout>& answers) {
  create_folders(folder);
  std::string lines = identity + "\n";
  for (const Rollout& answer : answers) lines += answer.to_line();
  const fs::path file = folder / cat(kUnfinishedAnswers, rank, ".jsonl");
  write_file_atomically(file, lines);
  return std::make_unique<AppendFile>(file);
}

std::string hash_of_weights(Stream& stream, Transformer& model) {
  Hasher hasher;
  std::vector<std::byte> bytes;
  const auto add = [&](const Tensor& values) {
    const Tensor first = values.narrow(0, 0, std::min(values.elements(), kHashedElements));
    bytes.resize(static_cast<size_t>(first.bytes()));
    if (bytes.empty()) return;
    stream.read(bytes.data(), first);
    hasher.update(bytes.data(), bytes.size());
  };
  for (const Parameter* parameter : model.parameters())
    for (const Tensor& kept : parameter->kept()) add(kept);
  for (const Buffer* buffer : model.buffers()) add(buffer->value().reshape({buffer->value().elements()}));
  return hasher.hex();
}

}  // namespace witan
