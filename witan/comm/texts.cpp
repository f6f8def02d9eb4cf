#include "witan/comm/texts.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "witan/base/threads/threads.h"

namespace witan {
namespace {

constexpr size_t kChunkBytes = 1 << 18;  // texts travel in pieces: the arena has little to spare while training

// Calls move(piece) for each piece of the text; before it, piece holds the text's bytes, and after it they are the
// text's.
void for_pieces(Stream& stream, std::string& text, const std::function<void(const Tensor& piece)>& move) {
  for (size_t at = 0; at < text.size(); at += kChunkBytes) {
    const size_t bytes = std::min(kChunkBytes, text.size() - at);
    const auto words = static_cast<int64_t>((bytes + sizeof(int32_t) - 1) / sizeof(int32_t));
    const Tensor piece = stream.zeros({words}, DType::i32, MemoryTag::communication);
    std::memcpy(piece.raw(), text.data() + at, bytes);
    move(piece);
    std::memcpy(text.data() + at, piece.raw(), bytes);
  }
}

}  // namespace

std::vector<int64_t> gather_numbers(Group& group, Stream& stream, int64_t value) {
  const Tensor mine = stream.empty({1}, DType::i64, MemoryTag::communication);
  const Tensor all = stream.empty({group.size()}, DType::i64, MemoryTag::communication);
  *mine.data<int64_t>() = value;
  group.all_gather(stream, all, mine);
  return all.to_vector<int64_t>();
}

std::vector<std::string> gather_texts(Group& group, Stream& stream, const std::string& text) {
  const std::vector<int64_t> lengths = gather_numbers(group, stream, static_cast<int64_t>(text.size()));
  std::string mine = text;
  if (group.rank() != 0) {
    for_pieces(stream, mine, [&](const Tensor& piece) { group.send(stream, piece, 0); });
    return {};
  }
  std::vector<std::string> texts{std::move(mine)};
  for (int rank = 1; rank < group.size(); ++rank) {
    texts.emplace_back(static_cast<size_t>(lengths[static_cast<size_t>(rank)]), '\0');
    for_pieces(stream, texts.back(), [&](const Tensor& piece) { group.recv(stream, piece, rank); });
  }
  return texts;
}

std::string broadcast_text(Group& group, Stream& stream, const std::string& text, int root) {
  const std::vector<int64_t> lengths = gather_numbers(group, stream, static_cast<int64_t>(text.size()));
  std::string shared = group.rank() == root ? text : std::string();
  shared.resize(static_cast<size_t>(lengths[static_cast<size_t>(root)]));
  for_pieces(stream, shared, [&](const Tensor& piece) { group.broadcast(stream, piece, root); });
  return shared;
}

std::vector<int64_t> gather_words(HostGroup& group, const std::vector<int64_t>& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  const auto bytes = [](int64_t words) { return words * static_cast<int64_t>(sizeof(int64_t)) + Arena::kAlignment; };
  ThreadPool alone(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(bytes(count) + bytes(count * group.size())), alone);
  const Tensor own = stream.empty({count}, DType::i64, MemoryTag::communication);
  const Tensor all = stream.empty({count * group.size()}, DType::i64, MemoryTag::communication);
  std::ranges::copy(mine, own.data<int64_t>());
  group.all_gather(stream, all, own);
  return all.to_vector<int64_t>();
}

}  // namespace witan
