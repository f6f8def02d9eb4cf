// Two parts of a pass at the same time, each on a stream of its own: one that mostly moves data between ranks beside
// one that computes.
#pragma once

#include <functional>

#include "witan/autograd/tape.h"

namespace witan {

// From here on `side` works, with what `main` has done so far. Nothing where both are one.
void fork(Stream& main, Stream& side);
// From here on `main` has what `side` did, its costs included.
void join(Stream& main, Stream& side);

// Records `beside` on the stream `side` and `meanwhile` on the tape's; then each waits for the other. The backward is
// the mirror image, on the same streams. Nothing waits on the host, so that both may be part of a captured step. `side`
// is a side stream of the tape's, which must outlive the tape, or the tape's own stream: then one part follows the
// other.
//
// Neither part may use what the other one makes, nor may both add to one gradient. Memory that either frees is handed
// out again when both are over, and gradients that are complete are told of then. CPU and meta streams do `beside`
// first.
void concurrently(Tape& tape, Stream& side, const std::function<void(Tape&)>& beside,
                  const std::function<void(Tape&)>& meanwhile);

}  // namespace witan
