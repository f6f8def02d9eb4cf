// How long ranks wait for each other in a call of a group, and what they are told when one is late.
#pragma once

#include <functional>
#include <string>

namespace witan {

struct CallDeadline {
  double seconds = 300;
  // The error's message when `who` ("rank 2", "ranks 1, 3") is late; none: which call it did not come to.
  std::function<std::string(const std::string& who)> late = {};

  std::string message(const std::string& who, const std::string& usual) const { return late ? late(who) : usual; }
};

}  // namespace witan
