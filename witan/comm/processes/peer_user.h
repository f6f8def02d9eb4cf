// Whose process is at the other end of a connection within this machine.
#pragma once

#include <sys/types.h>

#include <optional>

#include "witan/comm/processes/socket.h"

namespace witan {

// The user that the other end's socket belongs to, as the kernel's socket monitoring says (sock_diag(7)). Nothing where
// the other end is on another machine or gone, or the kernel does not say. What has connected may be asked at once; who
// accepts is known once it has accepted. Throws CommError where there is no file descriptor to ask the kernel by.
std::optional<uid_t> user_of_peer(const Socket& socket);

}  // namespace witan
