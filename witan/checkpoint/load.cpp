#include <algorithm>
#include <span>
#include <unordered_map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/agreement.h"
#include "witan/checkpoint/shards.h"
#include "witan/checkpoint/store.h"
#include "witan/tensor/host.h"
#include "witan/tensor/split.h"

namespace witan {
namespace {

constexpr const char* kSameModel = "load it with the configuration that it was saved with";

// The manifest's entry for a tensor. Throws CheckpointError when there is none, or it is of another kind.
const std::pair<const std::string, Manifest::Entry>& entry_of(const Checkpoint& checkpoint, const StateTensor& state) {
  check_state(state);
  const auto found = checkpoint.manifest.tensors.find(state.name);
  require<CheckpointError>(found != checkpoint.manifest.tensors.end(), checkpoint.folder.string(),
                           " holds no tensor \"", clipped(state.name), "\": it is of another model or optimizer; ",
                           kSameModel, ", or its weights alone, with no_load_optim");
  const Manifest::Entry& entry = found->second;
  require<CheckpointError>(entry.dtype == state.dtype() && entry.shape == state.global_shape,
                           checkpoint.folder.string(), ": \"", clipped(state.name), "\" is ", entry.dtype, " ",
                           entry.shape, ", the model expects ", state.dtype(), " ", state.global_shape, "; ",
                           kSameModel);
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

void refuse_extra(const Checkpoint& checkpoint, std::span<const int32_t> asked) {
  const auto left = std::ranges::count(asked, 0);
  if (left == 0) return;
  const auto first = std::ranges::find(asked, 0) - asked.begin();
  const std::string& name = std::next(checkpoint.manifest.tensors.begin(), first)->first;
  throw CheckpointError(cat(checkpoint.folder.string(), " holds ", left, " tensors that this run has no use for, \"",
                            clipped(name), "\" first: it is of another model or optimizer; ", kSameModel));
}

struct Copy {
  const StateTensor* to;
  int64_t first;  // element
  const std::byte* from;
  size_t bytes;
};

// The rows of every part that this rank's rows meet.
std::vector<Copy> find_copies(const Checkpoint& checkpoint, const std::vector<StateTensor>& into, Shards& shards) {
  std::vector<Copy> copies;
  for (const StateTensor& state : into) {
    const auto& [name, entry] = entry_of(checkpoint, state);
    const int64_t begin = state.first_row, end = begin + row_count(state.local.shape());
    const int64_t row = end > begin ? state.local.elements() / (end - begin) : 0;
    const int64_t row_bytes = row * size_of(entry.dtype);
    if (row == 0) continue;
    for (const Manifest::Part& part : entry.parts) {
      const int64_t from = std::max(begin, part.first_row), to = std::min(end, part.first_row + part.rows);
      if (from >= to) continue;
      const auto bytes = shards.bytes_of(name, entry, part);
      copies.push_back({&state, (from - begin) * row, bytes.data() + (from - part.first_row) * row_bytes,
                        static_cast<size_t>((to - from) * row_bytes)});
    }
  }
  return copies;
}

void perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    const StateTensor& to = *copy.to;
    const auto bytes = static_cast<int64_t>(copy.bytes), width = size_of(to.dtype());
    if (to.remainder.defined())
      split_from_host(to.local, to.remainder, copy.first, copy.from, bytes / width);
    else
      copy_from_host(to.local, copy.first * width, copy.from, bytes);
    release_pages({copy.from, copy.bytes});
  }
}

}  // namespace

void load_tensors(const Checkpoint& checkpoint, const std::vector<StateTensor>& into, Extra extra) {
  const std::vector<int32_t> asked = asked_for(checkpoint, into);
  if (extra == Extra::refuse) refuse_extra(checkpoint, asked);
  Shards shards(checkpoint.folder, checkpoint.manifest);
  perform(find_copies(checkpoint, into, shards));
}

void load_tensors(Group& world, Stream& stream, const Checkpoint& checkpoint, const std::vector<StateTensor>& into,
                  Extra extra) {
  std::vector<int32_t> asked;
  together(world, stream, [&] { asked = asked_for(checkpoint, into); });
  if (extra == Extra::refuse) {
    const Tensor anyone = stream.empty({static_cast<int64_t>(asked.size())}, DType::i32, MemoryTag::communication);
    std::ranges::copy(asked, anyone.data<int32_t>());
    world.all_reduce(stream, anyone, Reduce::max);
    together(world, stream, [&] { refuse_extra(checkpoint, anyone.span<int32_t>()); });
  }
  Shards shards(checkpoint.folder, checkpoint.manifest);
  std::vector<Copy> copies;
  together(world, stream, [&] { copies = find_copies(checkpoint, into, shards); });
  perform(copies);
}

}  // namespace witan
