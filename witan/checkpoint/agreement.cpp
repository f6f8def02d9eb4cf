#include "witan/checkpoint/agreement.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/file.h"

namespace witan {
namespace {

constexpr size_t kChunkBytes = 1 << 18;  // texts travel in pieces: the arena has little to spare while training

struct Outcome {
  ExitCode code = ExitCode::done;
  std::string message;
};

Outcome outcome_of(const std::function<void()>& body) try {
  body();
  return {};
} catch (const IoError& e) {
  return {ExitCode::checkpoint, e.what()};
} catch (const Error& e) {
  return {e.code(), e.what()};
} catch (const fs::filesystem_error& e) {
  const bool full = e.code() == std::errc::no_space_on_device;
  return {full ? ExitCode::disk_full : ExitCode::checkpoint, e.what()};
} catch (const std::exception& e) {
  return {ExitCode::internal, e.what()};
}

[[noreturn]] void throw_outcome(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::checkpoint:
      throw CheckpointError(message);
    case ExitCode::disk_full:
      throw DiskFullError(message);
    default:
      throw Error(code, message);
  }
}

// value of every rank, by rank.
std::vector<int64_t> gather_numbers(Group& group, Stream& stream, int64_t value) {
  const Tensor mine = stream.empty({1}, DType::i64, MemoryTag::communication);
  const Tensor all = stream.empty({group.size()}, DType::i64, MemoryTag::communication);
  *mine.data<int64_t>() = value;
  group.all_gather(stream, all, mine);
  return all.to_vector<int64_t>();
}

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

void together(Group& group, Stream& stream, const std::function<void()>& body) {
  const Outcome mine = outcome_of(body);
  const std::vector<int64_t> codes = gather_numbers(group, stream, static_cast<int64_t>(mine.code));
  const auto failed = std::ranges::find_if(codes, [](int64_t code) { return code != 0; });
  if (failed == codes.end()) return;
  const auto rank = static_cast<int>(failed - codes.begin());
  const std::string message = broadcast_text(group, stream, mine.message, rank);
  throw_outcome(static_cast<ExitCode>(*failed), group.size() == 1 ? message : cat(message, " (rank ", rank, ")"));
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

}  // namespace witan
