#include "witan/comm/checks/fingerprint.h"

#include <algorithm>
#include <string>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

int64_t fingerprint(const Tensor& tensor) {
  Hasher hasher;
  const std::string kind = cat(tensor.dtype(), tensor.shape());
  hasher.update(kind.data(), kind.size());
  for_host_bytes(tensor,
                 [&](const std::byte* bytes, int64_t count) { hasher.update(bytes, static_cast<size_t>(count)); });
  return static_cast<int64_t>(hasher.low64());
}

}  // namespace

std::vector<int> ranks_that_differ(Stream& stream, Group& group, const Tensor& tensor) {
  require<ShapeError>(tensor.defined() && tensor.contiguous(), "a fingerprint needs a contiguous tensor");
  const Tensor all = stream.empty({group.size()}, DType::i64, MemoryTag::communication);
  const Tensor mine = all.narrow(0, group.rank(), 1);
  if (!stream.is_meta()) {
    stream.wait();
    const int64_t own = fingerprint(tensor);
    stream.write(mine, &own);
  }
  group.all_gather(stream, all, mine);
  if (stream.is_meta()) return {};

  std::vector<int64_t> found(static_cast<size_t>(group.size()));
  stream.read(found.data(), all);
  const auto holders = [&](int64_t value) { return std::ranges::count(found, value); };
  const int64_t usual = *std::ranges::max_element(found, {}, holders);  // the first of equals
  std::vector<int> others;
  for (int rank = 0; rank < group.size(); ++rank)
    if (found[static_cast<size_t>(rank)] != usual) others.push_back(rank);
  return others;
}

void require_identical(Stream& stream, Group& group, const Tensor& tensor, std::string_view what) {
  std::string list;
  for (const int rank : ranks_that_differ(stream, group, tensor)) list += cat(list.empty() ? "" : ", ", rank);
  require<CommError>(list.empty(), "axis ", group.name(), ": ", what, " must be the same on its ", group.size(),
                     " ranks, but differs on rank(s) ", list, " of the group");
}

uint64_t message_sum(const std::byte* bytes, int64_t count) {
  return hash64(bytes, static_cast<size_t>(count));
}

std::string corrupted_message(const MessagePath& path, const Collective& call, int64_t bytes) {
  return cat("axis ", path.axis, ": check_messages: rank ", path.receiver, " received other bits than rank ",
             path.sender, " sent, in ", describe(call), in_words(call), " (", bytes,
             " bytes, whose checksums differ): the memory of one of them, or the connection between them, is faulty; "
             "the last checkpoint is from before it");
}

}  // namespace witan
