// Work that is queued once and done many times.
#pragma once

#include <functional>
#include <memory>

#include "witan/tensor/queue.h"

namespace witan {

// What `work` queues, recorded and not done; the queue must record. What `work` throws ends the recording.
std::unique_ptr<Graph> record(Queue& queue, const std::function<void()>& work);

}  // namespace witan
