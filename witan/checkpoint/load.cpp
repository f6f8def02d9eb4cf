#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/texts.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

constexpr const char* kSameModel = "load it with the configuration that it was saved with";

bool lacks(const Checkpoint& checkpoint, const StateTensor& state) {
  return state.kind == StateTensor::Kind::buffer && !checkpoint.manifest.tensors.contains(state.name);
}

// Removes the buffers that the checkpoint lacks from the tensors; returns their names.
std::vector<std::string> leave_out_lacking(const Checkpoint& checkpoint, std::vector<StateTensor>& into) {
  std::vector<std::string> lacking;
  for (const StateTensor& state : into)
    if (lacks(checkpoint, state)) lacking.push_back(state.name);
  std::erase_if(into, [&](const StateTensor& state) { return lacks(checkpoint, state); });
  return lacking;
}

// Optimizer state may be saved in float32 and loaded as bfloat16, and vice versa.
bool converts(DType saved, const StateTensor& state) {
  const auto fits = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  return state.kind == StateTensor::Kind::optimizer && fits(saved) && fits(state.dtype());
}

// The manifest's entry for a tensor. Throws CheckpointError if there is none, or if its shape or dtype differs.
const std::pair<const std::string, Manifest::Entry>& entry_of(const Checkpoint& checkpoint, const StateTensor& state) {
  check_state(state);
  const auto found = checkpoint.manifest.tensors.find(state.name);
  require<CheckpointError>(found != checkpoint.manifest.tensors.end(), checkpoint.folder.string(),
                           " holds no tensor \"", clipped(state.name), "\": it belongs to another model or optimizer; ",
                           kSameModel, ", or load only its weights with --no-load-optim");
  const Manifest::Entry& entry = found->second;
  require<CheckpointError>(
      (entry.dtype == state.dtype() || converts(entry.dtype, state)) && entry.shape == state.global_shape,
      checkpoint.folder.string(), ": \"", clipped(state.name), "\" is ", entry.dtype, " ", entry.shape,
      ", the model expects ", state.dtype(), " ", state.global_shape, "; ", kSameModel);
  return *found;
}

// asked[i]: whether this rank loads the i-th tensor of the manifest.
std::vector<int32_t> asked_for(const Checkpoint& checkpoint, const std::vector<StateTensor>& into) {
  std::unordered_map<std::string_view, size_t> order;
  for (const auto& [name, entry] : checkpoint.manifest.tensors) order.emplace(name, order.size());
  std::vector<int32_t> asked(order.size(), 0);
  for (const StateTensor& state : into) asked[order.at(entry_of(checkpoint, state).first)] = 1;
  return asked;
}

// Without its buffers a model differs from the trained one.
void refuse_unknown_buffers(const Checkpoint& checkpoint, std::span<const int32_t> asked) {
  constexpr size_t kNamed = 16;
  std::vector<std::string> unknown;
  auto is_asked = asked.begin();
  for (const auto& [name, entry] : checkpoint.manifest.tensors)
    if (*is_asked++ == 0 && entry.kind == StateTensor::Kind::buffer) unknown.push_back(cat('"', clipped(name), '"'));
  if (unknown.empty()) return;
  std::string names;
  for (size_t i = 0; i < std::min(unknown.size(), kNamed); ++i) names += (i == 0 ? "" : ", ") + unknown[i];
  if (unknown.size() > kNamed) names += cat(" and ", unknown.size() - kNamed, " more");
  throw CheckpointError(
      cat(checkpoint.folder.string(), " holds buffers that this model does not have: ", names, "; ", kSameModel));
}

void refuse_extra(const Checkpoint& checkpoint, std::span<const int32_t> asked, Extra extra) {
  refuse_unknown_buffers(checkpoint, asked);
  const auto left = std::ranges::count(asked, 0);
  if (left == 0 || extra == Extra::allow) return;
  const auto first = std::ranges::find(asked, 0) - asked.begin();
  const std::string& name = std::next(checkpoint.manifest.tensors.begin(), first)->first;
  throw CheckpointError(cat(checkpoint.folder.string(), " holds ", left,
                            " tensors that this run does not use (the first is \"", clipped(name),
                            "\"): it belongs to another model or optimizer; ", kSameModel));
}

// A part of a file that contains elements of a tensor.
struct Source {
  Region region;
  std::span<const std::byte> bytes;
};
struct Filling {
  const StateTensor* state;
  DType saved;  // dtype of the sources
  std::vector<Source> sources;
};

// The parts that overlap this rank's tensors, with their shards opened and verified.
std::vector<Filling> find_sources(const Checkpoint& checkpoint, const std::vector<StateTensor>& into, Shards& shards) {
  std::vector<Filling> fillings;
  for (const StateTensor& state : into) {
    const auto& [name, entry] = entry_of(checkpoint, state);
    Filling& filling = fillings.emplace_back(Filling{&state, entry.dtype, {}});
    for (const Manifest::Part& part : entry.parts)
      if (part.region.first() < state.region.end() && state.region.first() < part.region.end())
        filling.sources.push_back({part.region, shards.bytes_of(name, entry, part)});
  }
  return fillings;
}

template <class To, class From>
std::vector<std::byte> converted(const std::byte* from, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(To));
  for (int64_t i = 0; i < count; ++i) {
    From element;  // copied, since files do not align elements
    std::memcpy(&element, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To to(static_cast<float>(element));
    std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(To)), &to, sizeof(To));
  }
  return bytes;
}

// Fills elements [first, first + count) of the tensor from host memory, where they have dtype `saved`.
void put(const StateTensor& state, int64_t first, const std::byte* from, int64_t count, DType saved) {
  if (state.remainder.defined()) return split_from_host(state.local, state.remainder, first, from, count);
  const int64_t width = size_of(state.dtype());
  if (saved == state.dtype()) return copy_from_host(state.local, first * width, from, count * width);
  const std::vector<std::byte> as_state =
      saved == DType::f32 ? converted<bf16, float>(from, count) : converted<float, bf16>(from, count);
  copy_from_host(state.local, first * width, as_state.data(), count * width);
}

// A run of elements of the piece being filled, and their source.
struct Stretch {
  int64_t at, count;
  const std::byte* from;
};

std::vector<Stretch> stretches_of(const Filling& filling, int64_t begin, int64_t end) {
  const int64_t width = size_of(filling.saved);
  std::vector<Stretch> stretches;
  int64_t before = 0;  // elements of the previous pieces
  for (const Region& piece : filling.state->region.slice(begin, end)) {
    for (const Source& source : filling.sources)
      for_overlaps(piece, source.region, [&](int64_t here, int64_t there, int64_t count) {
        stretches.push_back({before + here, count, source.bytes.data() + there * width});
      });
    before += piece.elements();
  }
  return stretches;
}

// Fills in bounded pieces: elements that are scattered in files are gathered on the host, so that a GPU gets few
// copies.
void fill(const Filling& filling) {
  constexpr int64_t kPieceBytes = int64_t{8} << 20;
  const StateTensor& state = *filling.state;
  const int64_t width = size_of(filling.saved), total = state.region.elements();
  std::vector<std::byte> staged;
  for (int64_t begin = 0, end; begin < total; begin = end) {
    end = std::min(total, begin + kPieceBytes / width);
    const std::vector<Stretch> stretches = stretches_of(filling, begin, end);
    if (stretches.size() == 1) {
      put(state, begin, stretches[0].from, end - begin, filling.saved);
      release_pages({stretches[0].from, static_cast<size_t>((end - begin) * width)});
      continue;
    }
    staged.resize(static_cast<size_t>((end - begin) * width));
    for (const auto& [at, count, from] : stretches)
      std::memcpy(staged.data() + at * width, from, static_cast<size_t>(count * width));
    put(state, begin, staged.data(), end - begin, filling.saved);
  }
  for (const Source& source : filling.sources) release_pages(source.bytes);
}

// On rank 0 returns each name once, in the order of ranks.
std::vector<std::string> lacking_of_all(Group& world, Stream& stream, const std::vector<std::string>& own) {
  std::vector<std::string> all;
  for (const std::string& text : gather_texts(world, stream, Json(own).dump()))
    for (const Json& name : Json::parse(text))
      if (std::ranges::find(all, name.get<std::string>()) == all.end()) all.push_back(name.get<std::string>());
  return all;
}

}  // namespace

std::vector<std::string> load_tensors(const Checkpoint& checkpoint, const std::vector<StateTensor>& into, Extra extra) {
  std::vector<StateTensor> found = into;
  std::vector<std::string> lacking = leave_out_lacking(checkpoint, found);
  refuse_extra(checkpoint, asked_for(checkpoint, found), extra);
  Shards shards(checkpoint.folder, checkpoint.manifest);
  for (const Filling& filling : find_sources(checkpoint, found, shards)) fill(filling);
  return lacking;
}

std::vector<std::string> load_tensors(Group& world, Stream& stream, const Checkpoint& checkpoint,
                                      const std::vector<StateTensor>& into, Extra extra) {
  std::vector<StateTensor> found = into;
  const std::vector<std::string> own_lacking = leave_out_lacking(checkpoint, found);
  std::vector<int32_t> asked;
  run_collectively(world, stream, [&] { asked = asked_for(checkpoint, found); });
  const Tensor anyone = stream.empty({static_cast<int64_t>(asked.size())}, DType::i32, MemoryTag::communication);
  std::ranges::copy(asked, anyone.data<int32_t>());
  world.all_reduce(stream, anyone, Reduce::max);
  run_collectively(world, stream, [&] { refuse_extra(checkpoint, anyone.span<int32_t>(), extra); });
  Shards shards(checkpoint.folder, checkpoint.manifest);
  std::vector<Filling> fillings;
  run_collectively(world, stream, [&] { fillings = find_sources(checkpoint, found, shards); });
  for (const Filling& filling : fillings) fill(filling);
  return lacking_of_all(world, stream, own_lacking);
}

}  // namespace witan
