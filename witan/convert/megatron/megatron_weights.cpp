#include "witan/convert/megatron/megatron_weights.h"

#include <algorithm>
#include <cstring>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/megatron/megatron_args.h"

namespace witan {
namespace {

// Copies the piece, run by run of its last dim, to its place in the whole tensor.
void copy_chunk(const MegatronChunk& chunk, const Shape& shape, int64_t width, std::byte* whole) {
  const int dims = shape.dims();
  const int64_t run = dims == 0 ? 1 : chunk.sizes.last(), rows = run == 0 ? 0 : chunk.sizes.elements() / run;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = 0, stride = 1, rest = row;
    for (int dim = dims; dim-- > 0; stride *= shape[dim]) {
      const int64_t index = dim == dims - 1 ? 0 : rest % chunk.sizes[dim];
      if (dim < dims - 1) rest /= chunk.sizes[dim];
      at += (chunk.offsets[dim] + index) * stride;
    }
    std::memcpy(whole + at * width, chunk.bytes.data() + row * run * width, static_cast<size_t>(run * width));
  }
}

}  // namespace

MegatronWeights::MegatronWeights(const fs::path& folder)
    : folder_(folder), read_(read_megatron_arguments(folder_.arguments(), folder_.path().string())) {
  const auto& found = folder_.tensors();
  const auto embedding = found.find(std::string(kMegatronEmbedding));
  require<CheckpointError>(embedding != found.end() && embedding->second.shape.dims() == 2, where(),
                           " has no tensor \"", kMegatronEmbedding,
                           "\" [words, hidden_size]: it holds no GPT model of Megatron-Core");
  // A checkpoint does not say which rows are padding, so that all count as tokens.
  read_.model.vocab_size = embedding->second.shape[0];
  try {
    ModelConfig checked = read_.model;
    if (checked.attention.max_position_embeddings == 0) checked.attention.max_position_embeddings = read_.positions;
    checked.validate();
  } catch (const ConfigError& error) {
    throw ConfigError(cat(where(), ": args: ", error.what()));
  }
  list_tensors(read_.model);
  set_links(link_megatron(read_.model, tensors(), read_.model.vocab_size));
  check_tensors();
  choose_dtype(read_.model, [&](Element by, const std::string& source) {
    return holds(by, element_of_tensor(folder_.tensors().at(source)));
  });
}

void MegatronWeights::check_tensors() {
  const auto expected = megatron_tensors(read_.model, tensors(), read_.model.vocab_size);
  std::map<std::string, Shape> used(expected.begin(), expected.end());
  for (const auto& [name, shape] : used) {
    const auto found = folder_.tensors().find(name);
    require<CheckpointError>(found != folder_.tensors().end(), where(), " has no tensor \"", name, "\" ", shape,
                             ", which a model with its arguments has: files are missing");
    require<CheckpointError>(found->second.shape == shape, where(), ": \"", name, "\" is ", found->second.shape,
                             ", but its arguments ask for ", shape);
    element_of_tensor(found->second);  // refuses unsupported dtypes
  }
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (used.contains(name)) continue;
    require<CheckpointError>(name == kMegatronHead && !read_.model.untie_embeddings_and_output_weights, where(),
                             " has \"", clipped(name), "\" ", tensor.shape,
                             ", which a model with its arguments has no place for: it would be lost");
    check_tied_copy();
    note(name, "equal to the tied embedding");
  }
}

// The last pipeline stage holds the tied embedding as its head.
void MegatronWeights::check_tied_copy() {
  const std::string embedding(kMegatronEmbedding), head(kMegatronHead);
  const HeldTensor a = hold(embedding), b = hold(head);
  require<CheckpointError>(a.type == b.type && std::ranges::equal(a.bytes, b.bytes), where(),
                           ": its arguments tie the output layer to the embedding, but \"", head,
                           "\" is not equal to \"", embedding, '"');
  whole_.clear();
}

Element MegatronWeights::element_of_tensor(const MegatronTensor& tensor) const {
  return element_from_name(tensor.dtype, cat(where(), ": \"", clipped(tensor.name), '"'));
}

const Architecture& MegatronWeights::architecture() const {
  static const Architecture megatron{kMegatronFormat, "GPTModel", "", {}, {}};
  return megatron;
}

std::vector<ForeignWeights::Source> MegatronWeights::sources() const {
  std::vector<Source> all;
  for (const auto& [name, tensor] : folder_.tensors()) {
    Source& source = all.emplace_back(Source{name, tensor.dtype, tensor.shape, {}});
    for (const MegatronChunk& chunk : tensor.chunks) source.more.push_back(chunk.bytes);
  }
  return all;
}

HeldTensor MegatronWeights::hold(const std::string& name) {
  const MegatronTensor& tensor = folder_.tensors().at(name);
  const Element element = element_of_tensor(tensor);
  if (tensor.chunks.size() == 1) return {element, tensor.chunks.front().bytes};
  auto known = whole_.find(name);
  if (known == whole_.end()) {
    known =
        whole_.emplace(name, std::vector<std::byte>(static_cast<size_t>(tensor.shape.elements() * size_of(element))))
            .first;
    for (const MegatronChunk& chunk : tensor.chunks) {
      copy_chunk(chunk, tensor.shape, size_of(element), known->second.data());
      release_pages(chunk.bytes);
    }
  }
  return {element, known->second};
}

void MegatronWeights::release(const Link& link) {
  for (const SharedBox& piece : link.pieces) {
    for (const MegatronChunk& chunk : folder_.tensors().at(piece.from.name).chunks) release_pages(chunk.bytes);
    whole_.erase(piece.from.name);
  }
}

}  // namespace witan
