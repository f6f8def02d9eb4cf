// Verifies that ranks which should hold the same tensor do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/comm/group.h"

namespace witan {

// The ranks (within the group) whose tensor is not, bit for bit with dtype and shape, that of most ranks; of the lowest
// rank if no value has more holders than another. The same list on every rank; empty on a meta stream. Contiguous
// tensors, 8 bytes sent to each peer (XXH3). Throws ShapeError, CommError.
std::vector<int> ranks_that_differ(Stream& stream, Group& group, const Tensor& tensor);

// Throws CommError, on every rank, naming `what`, the axis and the ranks that differ.
void require_identical(Stream& stream, Group& group, const Tensor& tensor, std::string_view what);

// XXH3-64: every flipped bit changes it, and many flipped bits go unnoticed once in 2^64.
uint64_t message_sum(const std::byte* bytes, int64_t count);

// A message's sender and receiver, as ranks of the world, and the mesh axis that it travels along.
struct MessagePath {
  const std::string& axis;
  int sender = 0, receiver = 0;
};
// The error of a message that arrived with other bits than were sent.
std::string corrupted_message(const MessagePath& path, const Collective& call, int64_t bytes);

}  // namespace witan
