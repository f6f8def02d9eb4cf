// Captures work that is queued once and replayed many times.
#pragma once

#include <functional>
#include <memory>

#include "witan/tensor/queue.h"

namespace witan {

// Captures what `work` queues, without executing it; the queue must support capture. An exception from `work` ends the
// capture.
std::unique_ptr<Graph> record(Queue& queue, const std::function<void()>& work);

}  // namespace witan
