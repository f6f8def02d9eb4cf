// Runs two parts of a pass at the same time, each on a stream of its own: one that mostly moves data between ranks, and
// one that computes.
#pragma once

#include <functional>

#include "witan/autograd/tape.h"

namespace witan {

// Lets `side` start after the work that `main` has queued so far. Does nothing if both are the same stream.
void fork(Stream& main, Stream& side);
// Lets `main` continue after the work of `side`, whose costs it takes over.
void join(Stream& main, Stream& side);

// Records `beside` on the stream `side` and `meanwhile` on the tape's; then each waits for the other. The backward is
// the mirror image, on the same streams. Nothing waits on the host, so that both may be part of a captured step. `side`
// is a side stream of the tape's, which must outlive the tape, or the tape's own stream: then one part follows the
// other.
//
// Neither part may use values that the other one computes, nor may both add to the same gradient. Memory that either
// frees is reused only after both have ended, and complete gradients are reported then. CPU and meta streams run
// `beside` first.
void concurrently(Tape& tape, Stream& side, const std::function<void(Tape&)>& beside,
                  const std::function<void(Tape&)>& meanwhile);

}  // namespace witan
