#include "witan/comm/checks/message_check.h"

#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {

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
