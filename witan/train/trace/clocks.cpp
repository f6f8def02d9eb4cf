#include "witan/train/trace/clocks.h"

#include <cstdlib>

namespace witan {

int64_t first_clock_ahead_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock) {
  constexpr int kTrips = 8;
  const Tensor word = stream.zeros({1}, DType::i64, MemoryTag::communication);
  int64_t ahead = 0, shortest = -1;
  for (int peer = 1; peer < world.size(); ++peer) {
    for (int trip = 0; trip < kTrips; ++trip) {
      if (world.rank() == 0) {
        world.recv(stream, word, peer);
        *word.data<int64_t>() = clock();
        world.send(stream, word, peer);
      } else if (world.rank() == peer) {
        const int64_t asked = clock();
        world.send(stream, word, 0);
        world.recv(stream, word, 0);
        const int64_t answered = clock();
        if (shortest >= 0 && answered - asked >= shortest) continue;
        shortest = answered - asked;
        ahead = *word.data<int64_t>() - (asked + answered) / 2;
      }
    }
  }
  return std::abs(ahead) <= shortest ? 0 : ahead;
}

int64_t common_moment_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock) {
  const int64_t ahead = first_clock_ahead_ns(stream, world, clock);
  const Tensor moment = stream.empty({1}, DType::i64, MemoryTag::communication);
  *moment.data<int64_t>() = clock();
  world.broadcast(stream, moment, 0);
  return *moment.data<int64_t>() - ahead;
}

}  // namespace witan
