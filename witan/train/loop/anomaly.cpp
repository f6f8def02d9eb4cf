#include "witan/train/loop/anomaly.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/comm/texts.h"
#include "witan/train/step/device.h"
#include "witan/train/weights/load_run.h"

namespace witan {
namespace {

constexpr size_t kMostNames = 20;  // tensors of a rank that are listed

const std::string kBatchColumns = "batch.columns.";

// Visits each array of a batch with its name, its dtype, and whether it has a value per token or per sample.
template <class OfBatch, class Visit>
void for_batch_arrays(OfBatch& batch, Visit visit) {
  constexpr auto kToken = ColumnSpec::Per::token;
  visit("batch.tokens", batch.tokens, DType::i32, kToken);
  visit("batch.targets", batch.targets, DType::i32, kToken);
  visit("batch.positions", batch.positions, DType::i32, kToken);
  visit("batch.sequence_ids", batch.sequence_ids, DType::i32, kToken);
  visit("batch.loss_mask", batch.loss_mask, DType::f32, kToken);
  for (auto& [column, values] : batch.columns) visit(kBatchColumns + column.name, values, DType::f32, column.per);
}

Shape shape_of_batches(int64_t micro_batches, const Batch& one, ColumnSpec::Per per) {
  if (per == ColumnSpec::Per::sample) return {micro_batches, one.sequences};
  return {micro_batches, one.sequences, one.sequence_length};
}

// Host memory for the arrays of that many micro-batches.
Stream memory_for_batches(ThreadPool& pool, int64_t micro_batches, const Batch& one) {
  const int64_t tokens = shape_of_batches(micro_batches, one, ColumnSpec::Per::token).elements();
  const auto arrays = static_cast<int64_t>(5 + one.columns.size());
  return {{}, reserve_arena({}, arrays * ((tokens * 4 + 4095) / 4096 * 4096)), pool};
}

Json names_of(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kMostNames) {
    names.resize(kMostNames);
    names.push_back(cat("and ", all - kMostNames, " more"));
  }
  return names;
}

// The findings of one rank, for rank 0.
Json findings_of_rank(const AnomalousStep& anomaly, int rank) {
  Json own = {{"rank", rank},
              {"values", names_of(anomaly.engine.non_finite_values())},
              {"gradients", names_of(anomaly.engine.non_finite_gradients())}};
  const auto first = anomaly.engine.find_non_finite(anomaly.batches, anomaly.step, anomaly.updates, anomaly.result);
  if (!first) return own;
  const int64_t before = anomaly.layout.data_rank(rank) * static_cast<int64_t>(anomaly.batches.size());
  own["first"] = {{"pass", std::string(name_of(first->phase))},
                  {"micro_batch", before + first->micro_batch},
                  {"what", first->what}};
  return own;
}

// The order in which ranks reach the values that they found: forward before backward, and by pipeline stage.
std::pair<int, int> turn_of(const Json& rank, const Layout& layout) {
  const int stage = layout.mesh().coordinate(rank["rank"].get<int>(), Axis::pipeline);
  const bool forward = rank["first"]["pass"] == "forward";
  return {forward ? 0 : 1, forward ? stage : -stage};
}

std::string list_of(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += cat(list.empty() ? "" : ", ", rank);
  return list;
}

// The number of distinct names on all ranks, and the first of them.
std::string names_in_words(const Json& ranks, const char* kind) {
  std::set<std::string> names;
  std::string first;
  for (const Json& rank : ranks)
    for (const Json& name : rank[kind]) {
      if (first.empty()) first = name.get<std::string>();
      names.insert(name.get<std::string>());
    }
  return names.size() > 1 ? cat(first, " and ", names.size() - 1, " more") : first;
}

std::string tensors_in_words(const Json& ranks, const char* kind) {
  const std::string names = names_in_words(ranks, kind);
  return names.empty() ? "" : cat("; non-finite ", kind, ": ", names);
}

std::string findings_in_words(const Json& ranks, const Layout& layout) {
  const Json* first = nullptr;
  for (const Json& rank : ranks)
    if (rank.contains("first") && (first == nullptr || turn_of(rank, layout) < turn_of(*first, layout))) first = &rank;
  std::string text;
  if (first == nullptr) {
    text =
        "computed again, all values of the step were finite: a fault of memory, of a device or of a connection "
        "that did not last";
  } else {
    std::vector<int> alike;
    for (const Json& rank : ranks)
      if (rank.contains("first") && turn_of(rank, layout) == turn_of(*first, layout)) alike.push_back(rank["rank"]);
    const Json& found = (*first)["first"];
    text =
        cat("first, in the ", found["pass"].get<std::string>(), " of micro-batch ", found["micro_batch"].get<int64_t>(),
            " on rank ", (*first)["rank"].get<int>(), ", ", found["what"].get<std::string>());
    if (alike.size() > 1) text += cat(" (ranks ", list_of(alike), " found some)");
  }
  return text + tensors_in_words(ranks, "values") + tensors_in_words(ranks, "gradients");
}

// ": give one of its steps that went wrong, as FOLDER/step-6", or a message that there are none.
std::string anomalies_in(const fs::path& folder) {
  const auto there = step_folders(folder);  // newest first
  if (there.empty()) return cat(", and there is no step that went wrong in ", folder.string());
  return cat(": give one of its steps that went wrong, as ", there.front().second.string());
}

// Throws CheckpointError for another kind of path, and says which.
void require_may_be_anomaly(const fs::path& folder) {
  constexpr const char* kExpected =
      ": give the folder of a step that went wrong, RUN/anomalies/step-N, which `witan train` writes (keep_anomalies)";
  std::error_code none;
  const auto has = [&](const char* name) { return fs::exists(folder / name, none); };
  require<CheckpointError>(fs::exists(folder, none), folder.string(), " does not exist", kExpected);
  require<CheckpointError>(fs::is_directory(folder, none), folder.string(), " is a file", kExpected);
  if (has(kManifestName)) return;
  require<CheckpointError>(!has("metrics.jsonl") && !has("checkpoints"), folder.string(), " is the folder of a run",
                           anomalies_in(folder / "anomalies"));
  require<CheckpointError>(folder.filename() != "checkpoints", folder.string(), " has checkpoints of a run",
                           anomalies_in(folder.parent_path() / "anomalies"));
  require<CheckpointError>(step_folders(folder).empty(), folder.string(), " has several", anomalies_in(folder));
  throw CheckpointError(
      cat(folder.string(), " is not the folder of a step that went wrong: it has no ", kManifestName, kExpected));
}

// Whether this is the first of the ranks that hold the same micro-batches.
bool writes_batches(const Layout& layout, int rank) {
  int first = 0;
  while (layout.data_rank(first) != layout.data_rank(rank)) ++first;
  return first == rank;
}

}  // namespace

AfterAnomaly after_anomaly(const TrainConfig& config, const StepResult& result) {
  const std::string& said = result.spike ? config.on_spike : config.on_nan;
  if (said == "rewind") return AfterAnomaly::rewind;
  return said == "stop" ? AfterAnomaly::stop : AfterAnomaly::skip;
}

AnomalyFindings investigate(Group& host, Stream& stream, const AnomalousStep& anomaly) {
  AnomalyFindings findings;
  if (anomaly.result.spike) {
    findings.text = cat("the loss was ", anomaly.result.loss, " and the gradient norm ", anomaly.result.gradient_norm);
    return findings;
  }
  const Json own = findings_of_rank(anomaly, host.rank());
  for (const std::string& text : gather_texts(host, stream, own.dump())) findings.ranks.push_back(Json::parse(text));
  if (host.rank() == 0) {
    findings.text = findings_in_words(findings.ranks, anomaly.layout);
    findings.values = names_in_words(findings.ranks, "values");
  }
  return findings;
}

fs::path write_anomaly(Group& host, Stream& stream, const fs::path& folder, const AnomalousStep& anomaly, Json scalars,
                       std::vector<std::pair<std::string, std::string>> files) {
  CheckpointContent content{
      .step = anomaly.step, .tensors = {}, .scalars = std::move(scalars), .files = std::move(files)};
  for (StateTensor& tensor : anomaly.engine.state())
    if (StateTensor::is_of_model(tensor.kind)) content.tensors.push_back(std::move(tensor));
  const auto count = static_cast<int64_t>(anomaly.batches.size());
  const Batch& one = anomaly.batches.front();
  ThreadPool pool(1);
  Stream memory = memory_for_batches(pool, count, one);
  std::vector<Tensor> arrays;
  for_batch_arrays(one, [&](const std::string& name, const auto&, DType dtype, ColumnSpec::Per per) {
    arrays.push_back(memory.empty(shape_of_batches(count, one, per), dtype, MemoryTag::workspace));
    const Shape global = shape_of_batches(count * anomaly.layout.data_ranks(), one, per);
    content.tensors.push_back({.name = name,
                               .local = arrays.back(),
                               .global_shape = global,
                               .region = rows_of(global, anomaly.layout.data_rank(host.rank()) * count, count),
                               .writes = writes_batches(anomaly.layout, host.rank())});
  });
  for (size_t i = 0; i < anomaly.batches.size(); ++i)
    for_batch_arrays(anomaly.batches[i], [&, which = size_t{0}](const auto&, const auto& values, auto...) mutable {
      memory.write(arrays[which++].narrow(0, static_cast<int64_t>(i), 1), values.data());
    });
  return save_checkpoint(host, stream, folder, content);
}

RecordedAnomaly open_anomaly(const fs::path& folder) {
  require_may_be_anomaly(folder);
  Checkpoint checkpoint = open_checkpoint(folder);
  require<CheckpointError>(checkpoint.scalars.contains(kAnomaly), folder.string(),
                           " is a checkpoint, and not the folder of an anomaly: give RUN/anomalies/step-N");
  ResolvedConfig config = config_for_one_rank(checkpoint);
  const auto entry = checkpoint.manifest.tensors.find("batch.tokens");
  require<CheckpointError>(entry != checkpoint.manifest.tensors.end(), folder.string(), " has no batch");
  const Shape shape = entry->second.shape;
  RecordedAnomaly found{.checkpoint = std::move(checkpoint), .config = std::move(config), .batches = {}, .about = {}};
  Batch empty;
  empty.sequences = shape[1];
  empty.sequence_length = shape[2];
  for (const auto& [name, tensor] : found.checkpoint.manifest.tensors)
    if (name.starts_with(kBatchColumns))
      empty.columns.push_back({{name.substr(kBatchColumns.size()),
                                tensor.shape.dims() == 2 ? ColumnSpec::Per::sample : ColumnSpec::Per::token}});
  found.batches.resize(static_cast<size_t>(shape[0]), empty);
  ThreadPool pool(1);
  Stream memory = memory_for_batches(pool, shape[0], empty);
  std::vector<StateTensor> arrays;
  for_batch_arrays(empty, [&](const std::string& name, const auto&, DType dtype, ColumnSpec::Per per) {
    const Shape all = shape_of_batches(shape[0], empty, per);
    arrays.push_back({name, memory.empty(all, dtype, MemoryTag::workspace), all, {0, all.elements()}});
  });
  load_tensors(found.checkpoint, arrays, Extra::allow);
  for (size_t i = 0; i < found.batches.size(); ++i) {
    Batch& batch = found.batches[i];
    for_batch_arrays(batch, [&, which = size_t{0}](const auto&, auto& values, auto...) mutable {
      const Tensor own = arrays[which++].local.narrow(0, static_cast<int64_t>(i), 1);
      values.resize(static_cast<size_t>(own.elements()));
      memory.read(values.data(), own);
    });
    batch.count_loss_tokens();
  }
  found.about = found.checkpoint.scalars[kAnomaly];
  found.step = found.checkpoint.step;
  found.updates = found.about.value("updates", int64_t{0});
  return found;
}

}  // namespace witan
