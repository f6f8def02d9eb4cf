// Verifies that ranks which should hold the same tensor do.
#pragma once

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

}  // namespace witan
