// Checksums of what the ranks of a group on the host send each other (check_messages): who sends computes one before
// the call, who receives compares it with that of what has arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "witan/comm/group.h"

namespace witan {

// XXH3-64: every flipped bit changes it, and many flipped bits go unnoticed once in 2^64.
uint64_t message_sum(const std::byte* bytes, int64_t count);

// What a message is of: ranks of the world.
struct MessagePath {
  const std::string& axis;
  int sender = 0, receiver = 0;
};
// What is to be said of a message that arrived with other bits than were sent.
std::string corrupted_message(const MessagePath& path, const Collective& call, int64_t bytes);

}  // namespace witan
