// Ports for tests of processes.
#pragma once

#include <random>
#include <stdexcept>

#include "witan/base/error.h"
#include "witan/comm/processes/socket.h"

namespace witan::testing {

// A port that was free a moment ago and that the system assigns only to programs that request its number.
inline int free_port() {
  constexpr int kFirst = 12000, kPorts = 16000;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    try {
      return local_end(listen_at({"127.0.0.1", static_cast<int>(kFirst + random() % kPorts)})).port;
    } catch (const Error&) {
      continue;  // already in use
    }
  }
  throw std::runtime_error("no free port");
}

}  // namespace witan::testing
