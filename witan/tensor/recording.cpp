#include "witan/tensor/recording.h"

#include "witan/base/error.h"

namespace witan {

std::unique_ptr<Graph> record(Queue& queue, const std::function<void()>& work) {
  queue.begin_recording();
  try {
    work();
  } catch (...) {
    try {
      queue.end_recording();
    } catch (const DeviceError&) {  // what broke the recording is on its way
    }
    throw;
  }
  return queue.end_recording();
}

}  // namespace witan
