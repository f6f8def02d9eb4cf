// Folders of recorded routes: FOLDER/step-NNNNNNNN/R-of-N.routes, one file for each rank that writes one
// (docs/formats/routes.md). Any layout reads what any other has written: files say which sequences, positions and
// layers they hold.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/data/routes/route_file.h"

namespace witan {

// Writes a rank's file of a step, whole and durable; the folder is made. Files of the step that a job of another number
// of ranks wrote earlier are removed by rank 0. Throws IoError, DiskFullError.
void write_routes(const fs::path& folder, const RouteFile& file, int rank, int ranks);

// The sizes of a model that replays routes.
struct RoutedModel {
  int64_t experts = 0, topk = 0;
  std::vector<int64_t> layers;  // those with experts
};

// The routes that a rank asks for: of its sequences, its positions of each and its layers.
struct RouteQuery {
  int64_t step = 0;
  int64_t all_sequences = 0;  // of the step, on all ranks
  int64_t first_sequence = 0, sequences = 0;
  std::vector<PositionRange> positions;
  std::vector<int64_t> layers;
  std::span<const int32_t> tokens;  // [sequences, S]: whole ones
};

class RecordedRoutes {
 public:
  // Opens routes of sequences of S tokens. Throws DataError if there are none, ConfigError if another model recorded
  // them, CorruptionError, IoError.
  RecordedRoutes(fs::path folder, RoutedModel model, int64_t S);

  // ids [layers, sequences, P, K]. Routes of a training run are those of the step's sequences; those of evaluations and
  // generations are found by their tokens, of which a longer sequence may have more. Throws DataError naming file,
  // step, layer and place where something is missing or was recorded of other tokens.
  std::vector<int32_t> read(const RouteQuery& query) const;

 private:
  // A sequence of an evaluation or a generation.
  struct Place {
    fs::path file;
    int64_t sequence = 0;
  };

  void check_model(const RouteFile& file, const fs::path& path) const;
  void index(const std::vector<fs::path>& files);
  std::vector<int32_t> read_step(const RouteQuery& query) const;
  std::vector<int32_t> find_by_tokens(const RouteQuery& query) const;

  fs::path folder_;
  RoutedModel model_;
  int64_t S_;
  bool of_training_ = true;
  std::map<std::string, Place> by_tokens_;  // by the hash of their first S tokens
};

}  // namespace witan
