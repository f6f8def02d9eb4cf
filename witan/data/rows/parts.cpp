#include "witan/data/rows/parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/rows/made_record.h"

namespace witan {
namespace {

constexpr int64_t kMostParts = 256;  // each is one or two open files

std::string chunk_name(const std::string& stem, int64_t chunk, int64_t chunks) {
  const size_t digits = std::max<size_t>(std::to_string(chunks - 1).size(), 2);
  return fmt::format("{}.chunk.{:0{}}.jsonl", stem, chunk, digits);
}

std::string fraction_name(const std::string& stem, int64_t part, int64_t parts) {
  static constexpr const char* kNames[] = {"train", "val", "test"};
  if (parts > 3) return chunk_name(stem, part, parts);
  return fmt::format("{}.{}.jsonl", stem, kNames[part]);
}

}  // namespace

Parts::Parts(const fs::path& output, PartOptions options) : options_(std::move(options)) {
  const auto& [chunks, valid, fractions, seed] = options_;
  const std::string stem = stem_of_rows(output);
  require<ConfigError>(!output.empty() && output.has_filename(), "--output ", output.string(), ": give a file's name");
  require<ConfigError>(output.extension() != ".gz" && output.extension() != ".zst", "--output ", output.string(),
                       ": rows are written plain: give a name in .jsonl, and compress the file afterwards");
  require<ConfigError>(chunks >= 0 && chunks <= kMostParts, "--chunks ", chunks, ": give 1 to ", kMostParts);
  require<ConfigError>(valid >= 0 && valid < int64_t{1} << 40, "--valid ", valid, ": give a number of documents");
  require<ConfigError>(fractions.empty() || (chunks == 0 && valid == 0),
                       "--fractions names all parts: give it without --chunks and --valid");
  require<ConfigError>(fractions.size() <= static_cast<size_t>(kMostParts), "--fractions: at most ", kMostParts,
                       " parts");
  double sum = 0;
  for (const double fraction : fractions) {
    require<ConfigError>(fraction > 0 && std::isfinite(fraction), "--fractions: ", fraction,
                         " is no share: give numbers above 0, such as 0.98,0.01,0.01");
    sum += fraction;
  }
  double end = 0;
  for (const double fraction : fractions) ends_.push_back((end += fraction) / sum);
  const auto parts = static_cast<int64_t>(fractions.size());
  for (int64_t part = 0; part < parts; ++part) files_.push_back({fraction_name(stem, part, parts), {part}});
  if (parts > 0) return;
  if (chunks == 0) files_.push_back({stem + ".jsonl", {0}});
  for (int64_t chunk = 0; chunk < chunks; ++chunk) files_.push_back({chunk_name(stem, chunk, chunks), {chunk}});
  if (valid == 0) return;
  const int64_t dealt = std::max<int64_t>(chunks, 1);
  File taken{stem + ".val.jsonl", {}};
  for (int64_t chunk = 0; chunk < dealt; ++chunk) taken.streams.push_back(dealt + chunk);
  files_.push_back(std::move(taken));
}

void Parts::require_apart_from(const std::vector<Source>& sources) const {
  std::vector<fs::path> paths;
  for (const File& file : files_) paths.push_back(file.path);
  require_no_source(paths, sources);
}

int64_t Parts::streams() const {
  if (!ends_.empty()) return static_cast<int64_t>(ends_.size());
  return std::max<int64_t>(options_.chunks, 1) * (options_.valid > 0 ? 2 : 1);
}

int64_t Parts::stream_of(int64_t rank) const {
  if (!ends_.empty()) {
    const Philox random(options_.seed, Philox::stream_of("parts by fractions"));
    const double drawn = random.uniform(static_cast<uint64_t>(rank));
    const auto part = std::upper_bound(ends_.begin(), ends_.end() - 1, drawn) - ends_.begin();
    return static_cast<int64_t>(part);
  }
  const int64_t chunks = std::max<int64_t>(options_.chunks, 1), chunk = rank % chunks;
  return rank / chunks < options_.valid ? chunks + chunk : chunk;
}

int64_t Parts::least_rows() const {
  if (!ends_.empty()) return 1;
  return std::max<int64_t>(options_.chunks, 1) * (options_.valid + 1);
}

}  // namespace witan
