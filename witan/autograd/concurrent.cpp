#include "witan/autograd/concurrent.h"

#include <memory>
#include <optional>
#include <utility>

#include "witan/tensor/arena.h"

namespace witan {

void fork(Stream& main, Stream& side) {
  if (&side == &main) return;
  if (main.times_kernels()) side.time_kernels();
  side.follow(main);
}

void join(Stream& main, Stream& side) {
  if (&side == &main) return;
  main.follow(side);
  for (const auto& [part, kernels] : side.costs())
    for (const auto& [kernel, cost] : kernels) main.count(kernel.c_str(), cost);
  side.reset_costs();
}

void concurrently(Tape& tape, Stream& side, const std::function<void(Tape&)>& beside,
                  const std::function<void(Tape&)>& meanwhile) {
  Stream& main = tape.stream();
  const auto held = std::make_shared<std::optional<Arena::Hold>>();  // by the backward
  std::optional<Arena::Hold> hold(main.arena());
  fork(main, side);
  tape.mark([&tape, &main, &side, held] {
    join(main, side);
    held->reset();
    tape.concurrent_ = false;
    tape.stream_ = &main;
    for (Leaf* leaf : std::exchange(tape.ready_after_, {})) tape.signal_ready(*leaf);
  });
  tape.stream_ = &side;
  beside(tape);
  tape.stream_ = &main;
  meanwhile(tape);
  join(main, side);
  tape.mark([&tape, &main, &side, held] {
    held->emplace(main.arena());
    fork(main, side);
    tape.concurrent_ = true;
  });
}

}  // namespace witan
