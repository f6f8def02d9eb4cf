#include "witan/train/record/memory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson tags_json(const std::array<int64_t, kMemoryTags>& bytes) {
  OrderedJson json;
  for (int tag = 0; tag < kMemoryTags; ++tag)
    json[std::string(name_of(static_cast<MemoryTag>(tag)))] = bytes[static_cast<size_t>(tag)];
  return json;
}

// Adds where in its work a rank was, as far as that is known.
void add_place(OrderedJson& json, const MemoryPlace& place) {
  const TraceContext context = place.context();
  if (context.step > 0) json["step"] = context.step;
  if (context.phase != TraceContext::Phase::none) json["phase"] = name_of(context.phase);
  if (context.micro_batch >= 0) json["micro_batch"] = context.micro_batch;
  if (!context.module.empty()) json["module"] = context.module;
  if (!context.op.empty()) json["op"] = context.op;
}

OrderedJson block_json(const MemoryBlock& block) {
  OrderedJson shape = OrderedJson::array();
  for (int dim = 0; dim < block.shape.dims(); ++dim) shape.push_back(block.shape[dim]);
  OrderedJson json{{"bytes", block.bytes},
                   {"offset", block.offset},
                   {"tag", name_of(block.tag)},
                   {"dtype", name_of(block.dtype)},
                   {"shape", std::move(shape)}};
  add_place(json, block.place);
  return json;
}

// Names may have been cut within a UTF-8 character.
std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// `head`: the members before the arena's figures and blocks.
std::string text_of(OrderedJson head, const MemorySnapshot& snapshot) {
  head["reserved"] = snapshot.reserved;
  head["high_water"] = snapshot.high_water;
  head["largest_free"] = snapshot.largest_free;
  head["live"] = tags_json(snapshot.live);
  head["peak"] = tags_json(snapshot.peak);
  std::string text = text_of(head);
  text.back() = ',';
  text += "\n\"blocks\":[";
  for (const MemoryBlock& block : snapshot.blocks)
    text += (text.back() == '[' ? "\n" : ",\n") + text_of(block_json(block));
  return text + "\n]}\n";
}

// A snapshot that was asked for has no request.
std::string live_memory_json(int rank, int64_t step, const Arena& arena) {
  return text_of({{"rank", rank}, {"why", "asked"}, {"step", step}},
                 arena.snapshot(MemorySnapshot::Why::not_planned, 0, MemoryTag::workspace));
}

fs::path request_in(const fs::path& memory) {
  return memory / "request";
}

// bytes [1 + kMemoryTags]: the total peak, then the peak of each tag.
std::vector<int64_t> measured_memory(const Arena& arena) {
  std::vector<int64_t> bytes = {arena.high_water()};
  for (int tag = 0; tag < kMemoryTags; ++tag) bytes.push_back(arena.peak(static_cast<MemoryTag>(tag)));
  return bytes;
}
MemoryEvent memory_event(int rank, std::span<const int64_t> bytes) {
  MemoryEvent memory;
  memory.rank = rank;
  memory.peak = bytes[0];
  for (int tag = 0; tag < kMemoryTags; ++tag)
    memory.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = bytes[static_cast<size_t>(tag) + 1];
  return memory;
}

}  // namespace

std::string memory_json(int rank, const MemorySnapshot& snapshot) {
  OrderedJson request{{"bytes", snapshot.requested}, {"tag", name_of(snapshot.tag)}};
  add_place(request, snapshot.place);
  return text_of({{"rank", rank},
                  {"why", snapshot.why == MemorySnapshot::Why::refused ? "refused" : "not planned"},
                  {"request", std::move(request)}},
                 snapshot);
}

void write_snapshots(Arena& arena, const RunFolder& folder, const RunPlan& plan, int rank) {
  std::array<int64_t, kMemoryTags> planned{};
  const MemoryEvent& of_rank = plan.memory[static_cast<size_t>(rank)];
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    const auto found = of_rank.tags.find(std::string(name_of(static_cast<MemoryTag>(tag))));
    planned[static_cast<size_t>(tag)] =
        found == of_rank.tags.end() ? std::numeric_limits<int64_t>::max() : found->second;
  }
  const auto write = [&folder, rank](const MemorySnapshot& snapshot) {
    try {
      fs::create_directories(folder.memory());
      write_file_atomically(folder.memory() / cat("rank-", rank, ".json"), memory_json(rank, snapshot));
    } catch (const std::exception&) {  // e.g. a full disk; the error that caused the snapshot matters more
    }
  };
  arena.listen(write, planned);
}

void remove_snapshots(const RunFolder& folder) {
  fs::remove_all(folder.memory());
}

void request_snapshot(const fs::path& run) {
  const fs::path memory = run / "memory";
  fs::create_directories(memory);
  // Every request has a different text.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  write_file_atomically(request_in(memory), cat(now, " ", ::getpid(), "\n"));
}

MemoryRequest::MemoryRequest(const RunFolder& folder, const Arena& arena, int rank)
    : folder_(folder), arena_(arena), rank_(rank), known_(found()) {}

// The text of the current request; empty if there is none, or it cannot be read.
std::string MemoryRequest::found() const {
  const fs::path path = request_in(folder_.memory());
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  try {
    return read_file(path);
  } catch (const IoError&) {  // removed meanwhile
    return "";
  }
}

void MemoryRequest::before_step(int64_t step) {
  const std::string now = found();
  if (now.empty() || now == known_) return;
  known_ = now;
  asked_ = step;
}

std::optional<fs::path> MemoryRequest::answer() {
  const std::optional<int64_t> step = std::exchange(asked_, std::nullopt);
  if (!step) return std::nullopt;
  const fs::path path = folder_.memory() / cat("step-", *step, "-rank-", rank_, ".json");
  try {
    write_file_atomically(path, live_memory_json(rank_, *step, arena_));
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return path;
}

std::vector<MemoryEvent> gather_memory(Stream& stream, Group& group, const Arena& own) {
  constexpr int64_t kFigures = kMemoryTags + 1;
  const Tensor all = stream.empty({group.size() * kFigures}, DType::i64, MemoryTag::communication);
  const Tensor mine = all.narrow(0, group.rank() * kFigures, kFigures);
  std::ranges::copy(measured_memory(own), mine.data<int64_t>());
  group.all_gather(stream, all, mine);
  std::vector<MemoryEvent> events;
  for (int rank = 0; rank < group.size(); ++rank)
    events.push_back(memory_event(rank, all.span<int64_t>().subspan(static_cast<size_t>(rank * kFigures), kFigures)));
  return events;
}

}  // namespace witan
