// Checks the communication of ranks that are threads, with the smallest all-to-all of uneven counts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace witan::cli {

// Two ranks exchange rows as experts do: rank 0 has 0 … 4 and sends [2, 3] of them, rank 1 has 10 … 15 and sends [3,
// 3].
struct ExchangeCheck {
  std::array<std::vector<int32_t>, 2> sent, received;
  bool ok() const;  // rank 0 has 0 1 10 11 12, rank 1 has 2 3 4 13 14 15
};

// Throws CommError if the ranks cannot communicate.
ExchangeCheck check_exchange();

}  // namespace witan::cli
