#include "witan/comm/texts.h"

#include <algorithm>
#include <cstring>

#include "witan/base/error.h"

namespace witan {
namespace {

// Characters, in whole words behind their number, so that all texts are of one size.
Tensor packed(Stream& stream, const std::string& text, int64_t chars) {
  const auto item = static_cast<int64_t>(sizeof(int64_t));
  const Tensor words = stream.zeros({1 + (chars + item - 1) / item}, DType::i64, MemoryTag::communication);
  *words.data<int64_t>() = static_cast<int64_t>(text.size());
  if (!text.empty()) std::memcpy(words.data<int64_t>() + 1, text.data(), text.size());
  return words;
}

std::string unpacked(std::span<const int64_t> words) {
  const auto chars = std::clamp<int64_t>(words[0], 0, static_cast<int64_t>((words.size() - 1) * sizeof(int64_t)));
  return {reinterpret_cast<const char*>(words.data() + 1), static_cast<size_t>(chars)};
}

int64_t longest(Stream& stream, Group& group, const std::string& own) {
  const Tensor chars = stream.empty({1}, DType::i64, MemoryTag::communication);
  *chars.data<int64_t>() = static_cast<int64_t>(own.size());
  group.all_reduce(stream, chars, Reduce::max);
  return *chars.data<int64_t>();
}

}  // namespace

std::vector<std::string> all_texts(Stream& stream, Group& group, const std::string& own) {
  const Tensor words = packed(stream, own, longest(stream, group, own));
  const Tensor all = stream.empty({group.size(), words.elements()}, DType::i64, MemoryTag::communication);
  group.all_gather(stream, all, words.reshape({1, words.elements()}));
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) texts.push_back(unpacked(all.narrow(0, rank, 1).span<int64_t>()));
  return texts;
}

std::string text_of(Stream& stream, Group& group, int root, const std::string& own) {
  const std::string& said = group.rank() == root ? own : std::string();
  const Tensor words = packed(stream, said, longest(stream, group, said));
  group.broadcast(stream, words, root);
  return unpacked(words.span<int64_t>());
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += cat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace witan
