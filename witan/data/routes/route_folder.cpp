#include "witan/data/routes/route_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

constexpr const char* kEnding = ".routes";

fs::path step_folder(const fs::path& folder, int64_t step) {
  return folder / fmt::format("step-{:08}", step);
}

// Sorted; none where there is no folder.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error))
    if (entry.path().extension() == kEnding) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// For each position of a sequence of S tokens its place within the ranges, or -1.
std::vector<int64_t> places_of(const std::vector<PositionRange>& ranges, int64_t S) {
  std::vector<int64_t> places(static_cast<size_t>(S), -1);
  int64_t place = 0;
  for (const PositionRange& range : ranges)
    for (int64_t i = 0; i < range.count; ++i, ++place)
      if (range.first + i < S) places[static_cast<size_t>(range.first + i)] = place;
  return places;
}

// The answer to a query as files fill it.
class Answer {
 public:
  Answer(const RouteQuery& query, int64_t topk, int64_t S)
      : query_(query), K_(topk), S_(S), places_(places_of(query.positions, S)) {
    for (const PositionRange& range : query.positions) P_ += range.count;
    ids_.assign(query.layers.size() * static_cast<size_t>(query.sequences * P_ * K_), -1);
  }

  // The file's sequence `theirs` is the query's `ours`, if their tokens are the same.
  void take(const RouteFile& file, const std::string& path, int64_t theirs, int64_t ours) {
    check_tokens(file, path, theirs, ours);
    const std::vector<int64_t> there = places_of(file.positions, S_);
    for (const RouteFile::Layer& layer : file.layers) {
      const auto found = std::ranges::find(query_.layers, layer.layer);
      if (found == query_.layers.end()) continue;
      for (int64_t position = 0; position < S_; ++position) {
        const int64_t from = there[static_cast<size_t>(position)], to = places_[static_cast<size_t>(position)];
        if (from < 0 || to < 0) continue;
        const auto first = layer.ids.begin() + (theirs * file.positions_each() + from) * K_;
        std::copy(first, first + K_, ids_.begin() + at(found - query_.layers.begin(), ours, to));
      }
    }
  }

  std::vector<int32_t> finished(const std::string& where) && {
    for (size_t layer = 0; layer < query_.layers.size(); ++layer)
      for (int64_t sequence = 0; sequence < query_.sequences; ++sequence)
        for (int64_t place = 0; place < P_; ++place)
          require<DataError>(ids_[static_cast<size_t>(at(static_cast<int64_t>(layer), sequence, place))] >= 0, where,
                             ": step ", query_.step, ": no file has the routes of layer ", query_.layers[layer],
                             " for sequence ", query_.first_sequence + sequence,
                             " of the batch: a rank's file is "
                             "missing, or another model or batch was recorded");
    return std::move(ids_);
  }

 private:
  int64_t at(int64_t layer, int64_t sequence, int64_t place) const {
    return ((layer * query_.sequences + sequence) * P_ + place) * K_;
  }
  void check_tokens(const RouteFile& file, const std::string& path, int64_t theirs, int64_t ours) const {
    int64_t place = theirs * file.positions_each();
    for (const PositionRange& range : file.positions)
      for (int64_t i = 0; i < range.count; ++i, ++place) {
        const int64_t position = range.first + i;
        if (position >= S_) continue;
        const int32_t recorded = file.tokens[static_cast<size_t>(place)],
                      token = query_.tokens[static_cast<size_t>(ours * S_ + position)];
        require<DataError>(recorded == token, path, ": step ", query_.step, ": the routes of sequence ",
                           file.first_sequence + theirs, " were recorded of other tokens: at position ", position,
                           " token ", recorded, ", in this run ", token,
                           "; replay them with the data, tokenizer, seed and batch that they were recorded with");
      }
  }

  const RouteQuery& query_;
  int64_t K_, S_, P_ = 0;
  std::vector<int64_t> places_;
  std::vector<int32_t> ids_;
};

std::string key_of(std::span<const int32_t> tokens) {
  return hash_hex(tokens.data(), tokens.size_bytes());
}

bool holds_whole_sequences(const RouteFile& file) {
  return file.positions == std::vector<PositionRange>{{0, file.sequence_length}};
}

}  // namespace

void write_routes(const fs::path& folder, const RouteFile& file, int rank, int ranks) {
  const fs::path step = step_folder(folder, file.step);
  const std::string of_job = fmt::format("-of-{}{}", ranks, kEnding);
  create_folders(step);
  std::error_code absent;
  if (rank == 0)
    for (const fs::path& old : files_in(step))
      if (!old.filename().string().ends_with(of_job)) fs::remove(old, absent);
  write_file_atomically(step / (std::to_string(rank) + of_job), encode_routes(file));
}

RecordedRoutes::RecordedRoutes(fs::path folder, RoutedModel model, int64_t S)
    : folder_(std::move(folder)), model_(std::move(model)), S_(S) {
  const std::vector<fs::path> files = files_in(folder_);
  require<DataError>(!files.empty(), folder_.string(),
                     ": there are no recorded routes; record some with --record-routes FOLDER");
  const RouteFile first = read_routes(files.front());
  check_model(first, files.front());
  of_training_ = first.kind == RouteFile::Kind::training;
  require<ConfigError>(!of_training_ || first.sequence_length == S_, files.front().string(), ": step ", first.step,
                       ": recorded with seq_length = ", first.sequence_length, ", this run has ", S_);
  if (!of_training_) index(files);
}

void RecordedRoutes::check_model(const RouteFile& file, const fs::path& path) const {
  const auto where = [&] { return cat(path.string(), ": step ", file.step, ": recorded with "); };
  require<ConfigError>(file.experts == model_.experts, where(), "num_experts = ", file.experts, ", this run has ",
                       model_.experts);
  require<ConfigError>(file.topk == model_.topk, where(), "moe_router_topk = ", file.topk, ", this run has ",
                       model_.topk);
  for (const RouteFile::Layer& layer : file.layers)
    require<ConfigError>(std::ranges::find(model_.layers, layer.layer) != model_.layers.end(), where(),
                         "experts in layer ", layer.layer, "; this run has them in layers ",
                         fmt::format("{}", fmt::join(model_.layers, ", ")));
}

void RecordedRoutes::index(const std::vector<fs::path>& files) {
  for (const fs::path& path : files) {
    const RouteFile file = read_routes(path);
    check_model(file, path);
    require<DataError>(holds_whole_sequences(file) && file.kind != RouteFile::Kind::training, path.string(), ": step ",
                       file.step,
                       ": the folder holds routes of a training run and of others: keep them in "
                       "folders of their own");
    if (file.sequence_length < S_) continue;
    for (int64_t i = 0; i < file.sequences; ++i)
      by_tokens_.try_emplace(
          key_of(
              std::span(file.tokens).subspan(static_cast<size_t>(i * file.sequence_length), static_cast<size_t>(S_))),
          Place{path, i});
  }
}

std::vector<int32_t> RecordedRoutes::read(const RouteQuery& query) const {
  return of_training_ ? read_step(query) : find_by_tokens(query);
}

std::vector<int32_t> RecordedRoutes::read_step(const RouteQuery& query) const {
  const fs::path folder = step_folder(folder_, query.step);
  Answer answer(query, model_.topk, S_);
  for (const fs::path& path : files_in(folder)) {
    const RouteFile file = read_routes(path);
    check_model(file, path);
    const auto where = [&] { return cat(path.string(), ": step ", file.step, ": recorded with "); };
    require<ConfigError>(file.all_sequences == query.all_sequences, where(), "global_batch_size = ", file.all_sequences,
                         ", this run has ", query.all_sequences);
    require<ConfigError>(file.sequence_length == S_, where(), "seq_length = ", file.sequence_length, ", this run has ",
                         S_);
    for (int64_t i = 0; i < file.sequences; ++i)
      if (const int64_t ours = file.first_sequence + i - query.first_sequence; ours >= 0 && ours < query.sequences)
        answer.take(file, path.string(), i, ours);
  }
  return std::move(answer).finished(folder.string());
}

std::vector<int32_t> RecordedRoutes::find_by_tokens(const RouteQuery& query) const {
  Answer answer(query, model_.topk, S_);
  std::optional<RouteFile> file;
  fs::path open;
  for (int64_t i = 0; i < query.sequences; ++i) {
    const auto tokens = query.tokens.subspan(static_cast<size_t>(i * S_), static_cast<size_t>(S_));
    const auto found = by_tokens_.find(key_of(tokens));
    require<DataError>(found != by_tokens_.end(), folder_.string(), ": step ", query.step,
                       ": no recorded sequence begins with the tokens of sequence ", query.first_sequence + i,
                       " of the batch; train on what was recorded, with seq_length = its number of tokens");
    if (!file || open != found->second.file) file = read_routes(open = found->second.file);
    answer.take(*file, open.string(), found->second.sequence, i);
  }
  return std::move(answer).finished(folder_.string());
}

}  // namespace witan
