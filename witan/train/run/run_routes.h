// The routes of a run in files (docs/formats/routes.md): each rank writes those of its own tokens and layers, and reads
// those that it replays, whatever layout wrote them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/routes/route_folder.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/stages.h"
#include "witan/train/run/config.h"
#include "witan/train/step/features/step_routes.h"

namespace witan {

class RunRoutes {
 public:
  // Throws what RecordedRoutes throws, before any work, where the run replays routes.
  RunRoutes(const RunConfig& config, const Groups& groups);

  bool records() const { return !record_.empty(); }
  bool replays() const { return recorded_.has_value(); }
  // Of a rank's whole micro-batches: what StepRoutes::replay() takes.
  std::vector<int32_t> read(int64_t step, const std::vector<Batch>& batches) const;
  // Of ranks that hold the same tokens, the first writes them.
  void write(int64_t step, const std::vector<Batch>& batches, const StepRoutes::Found& found) const;

 private:
  RouteQuery query(int64_t step) const;

  std::string record_;
  std::optional<RecordedRoutes> recorded_;
  int64_t experts_, topk_, sequence_length_, all_sequences_, first_sequence_, sequences_;
  std::vector<PositionRange> positions_;  // of this rank's tokens
  std::vector<int64_t> layers_;           // with experts, of this rank's
  RouteFile::Weights stored_as_;
  bool writes_;
  int rank_, ranks_;
};

// Those that the run replays; nothing where it replays none. Throws what RecordedRoutes throws.
std::optional<RecordedRoutes> open_replayed_routes(const RunConfig& config);

// Layers with experts, by their numbers in the model.
std::vector<int64_t> routed_layers(const ModelConfig& config);

// The experts of an evaluation's or a generation's tokens, on one CPU rank: appended on the host as they are computed.
class RouteLog : public RouteAccess {
 public:
  explicit RouteLog(Transformer& model);

  Tensor recorded(int64_t) override { return {}; }
  void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) override;
  int64_t tokens() const;  // that were recorded since the last call of write()
  // What was recorded since the last call, of these tokens: whole sequences, one after the other. Written as `step`.
  void write(const fs::path& folder, RouteFile::Kind kind, int64_t step, int64_t sequences,
             std::vector<int32_t> tokens);

 private:
  const ModelConfig& config_;
  std::vector<RouteFile::Layer> layers_;
};

}  // namespace witan
