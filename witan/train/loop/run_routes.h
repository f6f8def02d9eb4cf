// The recorded routes of a run (docs/formats/routes.md). Each rank writes the routes of its own tokens and layers, and
// reads those that it replays, which may have been written in another layout.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/routes/route_folder.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/stages.h"
#include "witan/train/config/config.h"
#include "witan/train/step/features/step_routes.h"

namespace witan {

class RunRoutes {
 public:
  // Throws what RecordedRoutes throws if the run replays routes.
  RunRoutes(const RunConfig& config, const Groups& groups);

  bool records() const { return !record_.empty(); }
  bool replays() const { return recorded_.has_value(); }
  // The argument of StepRoutes::replay() for the rank's micro-batches.
  std::vector<int32_t> read(int64_t step, const std::vector<Batch>& batches) const;
  // Among ranks that hold the same tokens, the first one writes.
  void write(int64_t step, const std::vector<Batch>& batches, const StepRoutes::Found& found) const;

 private:
  RouteQuery query(int64_t step) const;

  std::string record_;
  std::optional<RecordedRoutes> recorded_;
  int64_t experts_, topk_, sequence_length_, all_sequences_, first_sequence_, sequences_;
  std::vector<PositionRange> positions_;  // this rank's
  std::vector<int64_t> layers_;           // this rank's layers with experts
  RouteFile::Weights stored_as_;
  bool writes_;
  int rank_, ranks_;
};

// The routes that the run replays; nothing if it replays none. Throws what RecordedRoutes throws.
std::optional<RecordedRoutes> open_replayed_routes(const RunConfig& config);

// The numbers of the layers with experts.
std::vector<int64_t> routed_layers(const ModelConfig& config);

// Records the routes of an evaluation or a generation on one CPU rank, as they are computed.
class RouteLog : public RouteAccess {
 public:
  explicit RouteLog(Transformer& model);

  Tensor recorded(int64_t) override { return {}; }
  void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) override;
  int64_t tokens() const;  // recorded since the last call of write()
  // Writes what was recorded since the last call as `step`. `tokens` are the recorded tokens: whole sequences, one
  // after the other.
  void write(const fs::path& folder, RouteFile::Kind kind, int64_t step, int64_t sequences,
             std::vector<int32_t> tokens);

 private:
  const ModelConfig& config_;
  std::vector<RouteFile::Layer> layers_;
};

}  // namespace witan
