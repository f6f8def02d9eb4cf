#include "witan/train/run/anomaly.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/comm/texts.h"
#include "witan/train/run/load_run.h"
#include "witan/train/step/device.h"

namespace witan {
namespace {

constexpr size_t kMostNames = 20;  // of tensors of a rank that are listed

// The names of a batch's arrays, and the arrays.
template <class OfBatch, class Visit>
void for_batch_arrays(OfBatch& batch, Visit visit) {
  visit("batch.tokens", batch.tokens, DType::i32);
  visit("batch.targets", batch.targets, DType::i32);
  visit("batch.positions", batch.positions, DType::i32);
  visit("batch.sequence_ids", batch.sequence_ids, DType::i32);
  visit("batch.loss_mask", batch.loss_mask, DType::f32);
}

Shape shape_of_batches(int64_t micro_batches, const Batch& one) {
  return {micro_batches, one.sequences, one.sequence_length};
}

Json names_of(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kMostNames) {
    names.resize(kMostNames);
    names.push_back(cat("and ", all - kMostNames, " more"));
  }
  return names;
}

// What one rank has found, for rank 0.
Json findings_of_rank(const AnomalousStep& anomaly, int rank) {
  Json own = {{"rank", rank},
              {"values", names_of(anomaly.engine.non_finite_values())},
              {"gradients", names_of(anomaly.engine.non_finite_gradients())}};
  const auto first =
      anomaly.engine.find_non_finite(anomaly.batches, anomaly.step, anomaly.updates, anomaly.result.waves);
  if (!first) return own;
  const int64_t before = anomaly.layout.data_rank(rank) * static_cast<int64_t>(anomaly.batches.size());
  own["first"] = {{"pass", std::string(name_of(first->phase))},
                  {"micro_batch", before + first->micro_batch},
                  {"what", first->what}};
  return own;
}

// In which order ranks come to what they found: forwards before backwards, and each from stage to stage.
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

// The names of all ranks, each once.
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
  return names.empty() ? "" : cat("; ", kind, " that are not finite: ", names);
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

// ": give one of its steps that went wrong, as FOLDER/step-6", or that there are none.
std::string anomalies_in(const fs::path& folder) {
  const auto there = step_folders(folder);  // newest first
  if (there.empty()) return cat(", and there is no step that went wrong in ", folder.string());
  return cat(": give one of its steps that went wrong, as ", there.front().second.string());
}

// Throws CheckpointError for what cannot be one, with what it is.
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
      cat(folder.string(), " is no folder of a step that went wrong, as it has no ", kManifestName, kExpected));
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
    if (tensor.kind == StateTensor::Kind::value || tensor.kind == StateTensor::Kind::buffer)
      content.tensors.push_back(std::move(tensor));
  const auto count = static_cast<int64_t>(anomaly.batches.size());
  const Shape own = shape_of_batches(count, anomaly.batches.front());
  const Shape global = shape_of_batches(count * anomaly.layout.data_ranks(), anomaly.batches.front());
  const int64_t bytes_of_array = (own.elements() * 4 + 4095) / 4096 * 4096;
  ThreadPool pool(1);
  Stream memory({}, reserve_arena({}, 5 * bytes_of_array), pool);
  std::vector<Tensor> arrays;
  const Region rows = rows_of(global, anomaly.layout.data_rank(host.rank()) * count, count);
  for (size_t i = 0; i < anomaly.batches.size(); ++i)
    for_batch_arrays(anomaly.batches[i],
                     [&, which = size_t{0}](const char* name, const auto& values, DType dtype) mutable {
                       if (i == 0) {
                         arrays.push_back(memory.empty(own, dtype, MemoryTag::workspace));
                         content.tensors.push_back({.name = name,
                                                    .local = arrays.back(),
                                                    .global_shape = global,
                                                    .region = rows,
                                                    .writes = writes_batches(anomaly.layout, host.rank())});
                       }
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
  found.batches.resize(static_cast<size_t>(shape[0]), empty);
  ThreadPool pool(1);
  Stream memory({}, reserve_arena({}, 5 * ((shape.elements() * 4 + 4095) / 4096 * 4096)), pool);
  std::vector<StateTensor> arrays;
  for_batch_arrays(empty, [&](const char* name, const auto&, DType dtype) {
    arrays.push_back({name, memory.empty(shape, dtype, MemoryTag::workspace), shape, {0, shape.elements()}});
  });
  load_tensors(found.checkpoint, arrays, Extra::allow);
  const auto each = static_cast<size_t>(shape[1] * shape[2]);
  for (size_t i = 0; i < found.batches.size(); ++i) {
    Batch& batch = found.batches[i];
    for_batch_arrays(batch, [&, which = size_t{0}](const char*, auto& values, DType) mutable {
      values.resize(each);
      memory.read(values.data(), arrays[which++].local.narrow(0, static_cast<int64_t>(i), 1));
    });
    batch.loss_tokens = std::ranges::count(batch.loss_mask, 1.0F);
  }
  found.about = found.checkpoint.scalars[kAnomaly];
  found.step = found.checkpoint.step;
  found.updates = found.about.value("updates", int64_t{0});
  return found;
}

}  // namespace witan
