// Ports for tests of processes.
#pragma once

#include <random>
#include <stdexcept>

#include "witan/base/error.h"
#include "witan/comm/processes/socket.h"

namespace witan::testing {

// A port that nobody has, a moment ago, and that the system gives to nobody who does not ask for it by its number.
inline int free_port() {
  constexpr int kFirst = 12000, kPorts = 16000;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    try {
      return local_end(listen_at({"127.0.0.1", static_cast<int>(kFirst + random() % kPorts)})).port;
    } catch (const Error&) {
      continue;  // somebody has it
    }
  }
  throw std::runtime_error("no free port");
}

}  // namespace witan::testing
